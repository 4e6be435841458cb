// Plans recorded into CUDA graphs: when a plan is recorded, which calls a recording serves, and where their arguments
// and results lie.
#pragma once

#include <Python.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan_program.h"

namespace jit {

class Run;
struct Recording;

// The recordings of one plan. A recording has all steps of a call, at fixed addresses:
//
// - an input that lies where it lay in the calls before, as parameters and caches do, is read and written in place; its
//   address is compared on each call, and if it has moved, the plan is recorded again. Any other input is copied into
//   memory of the recording's, and back if the plan writes it.
// - seeds of random numbers are drawn by each call, before the others' steps, and copied like inputs.
// - results are copied into memory that each call allocates anew. Those that only a backward of ours reads stay where
//   they are, lent to the call's tensors; until these are gone, the recording serves no other call.
//
// What a recording needs in between lies in one pool for each device and stream, which the recordings there share,
// since they run one after the other. Whatever no recording serves is run step by step.
class Graphs {
 public:
  explicit Graphs(const Program& program);
  ~Graphs();
  Graphs(const Graphs&) = delete;

  // The recording that serves the call whose inputs and registers `run` has, made now if it is time for it; null if its
  // steps are to be run. Results from number `n_public` on are read by backwards of ours alone. With the GIL held;
  // throws PythonError for an interrupt, and nothing else.
  std::shared_ptr<Recording> serve(Run& run, int device, void* stream, size_t n_public);

  // Gives `run` memory for its results.
  void prepare(const Recording& recording, Run& run, int device) const;

  // Fills the results and changes the inputs, as the steps would have done. With the GIL held.
  void launch(Recording& recording, Run& run, int device, void* stream);

  // {"recorded": .., "replayed": .., "refused": why no (other) recording is made, or None}
  PyObject* told() const;

 private:
  struct State;
  // A step that makes results: their memory, which is `slot`'s, or a view of it.
  struct Making {
    const Step* step;
    int32_t slot;
    bool owner;
  };

  void refuse(const std::string& reason);
  void find_draws();
  void draw(Run& run, int device, void* stream) const;
  std::string find_makings();
  std::string unsuitable(bool pretended) const;
  State* state_of(const Run& run, int device, void* stream, size_t n_public);
  bool in_place(const Recording& recording, Run& run, State& state) const;
  std::shared_ptr<Recording> record(State& state, Run& run, int device, void* stream);

  const Program& p_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<Making> makings_;  // in the order of the steps
  std::vector<bool> needed_;     // slots that results are made of
  std::vector<size_t> drawn_;    // steps that draw and read nothing, which each call runs
  std::vector<bool> skipped_;    // these, by step
  std::string refused_;
  bool over_ = false, checked_ = false, draws_ = false /* in other steps */, pretended_ = false;
  int64_t recorded_ = 0, replayed_ = 0;
};

// For tests: plans for CPUs are "recorded", and replayed by running their steps on the memory of the recording.
void pretend_graphs(bool on);

}  // namespace jit
