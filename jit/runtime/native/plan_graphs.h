// Plans recorded into CUDA graphs: when a plan is recorded, which calls a recording serves, and where their arguments
// and results lie.
#pragma once

#include <ATen/core/stack.h>
#include <Python.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plan_program.h"

namespace jit {

class Run;
struct Recording;
struct Piece;

// How long a call takes the processor, and how long the device.
class Timing {
 public:
  ~Timing();
  void begin(void* stream) noexcept;
  void end(void* stream) noexcept;
  // Around a wait for what goes on beside the plan, and may wait for other processes: that is not the call's own time.
  void rest(void* stream) noexcept { mark(stream, true); }
  void go_on(void* stream) noexcept { mark(stream, false); }
  bool is_over() const { return over_; }  // all has been launched
  bool is_done() const;                   // and the device has done it
  // Seconds that a recording of so many launches would save in a call that is done: the processor's, where the device
  // has waited for it, or those between launches, where these are much of the device's.
  double saved(size_t launches) const;

 private:
  void mark(void* stream, bool rests) noexcept;

  void *first_ = nullptr, *last_ = nullptr;  // events; null where recordings are pretended
  std::vector<std::pair<void*, void*>> rests_;
  std::chrono::steady_clock::time_point start_;
  double seconds_ = 0;
  std::atomic<bool> over_ = false;
};

// The recordings of one plan. A recording has all steps of a call, at fixed addresses:
//
// - an input that lies where it lay in the calls before, as parameters and caches do, is read and written in place; its
//   address is compared on each call, and if it has moved, the plan is recorded again. Any other input is copied into
//   memory of the recording's, and back if the plan writes it.
// - seeds of random numbers are drawn by each call, before the others' steps, and copied like inputs.
// - results are copied into memory that each call allocates anew. Those that only a backward of ours reads stay where
//   they are, lent to the call's tensors; until these are gone, the recording serves no other call. Gradients are lent
//   too where recordings were asked for, until a caller is seen to keep some until the next call: they are copied from
//   then on.
//
// - a collective, and the wait for one, is no part of a CUDA graph: other processes may run their steps one by one, and
//   what they do together has to be the same. It cuts the recording in pieces, and each call makes it in between, on
//   the memory that the recording has its arguments in. What it makes in memory of its own is copied, behind the wait.
//
// What a recording needs in between lies in one pool for each device and stream, which the recordings there share,
// since they run one after the other. Whatever no recording serves is run step by step.
//
// `measured`: a kind of calls is recorded only if that saves time, since the device waits for the processor in them or
// between many short kernels, as two calls of it are timed, and if what a recording copies and keeps is little beside
// that.
class Graphs {
 public:
  Graphs(const Program& program, bool measured);
  ~Graphs();
  Graphs(const Graphs&) = delete;

  // The recording that serves the call whose inputs and registers `run` has, made now if it is time for it; null if its
  // steps are to be run. Results from number `n_public` on are read by backwards of ours alone. With the GIL held;
  // throws PythonError for an interrupt, and nothing else.
  std::shared_ptr<Recording> serve(Run& run, int device, void* stream, size_t n_public);

  // The results are gradients, which are mostly gone before the next call. Where nobody has asked for recordings they
  // are copied all the same: memory that is lent is not kept for other streams by `record_stream`.
  void lend_results() { lends_results_ = !measured_; }

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
  std::string not_live(const AtenStep& step) const;
  std::string unsuitable(bool pretended) const;
  State* state_of(const Run& run, int device, void* stream, size_t n_public);
  bool in_place(const Recording& recording, Run& run, State& state) const;
  bool pays(State& state, Run& run) const;
  std::string too_much(const Recording& recording, const State& state, int64_t kept) const;
  int64_t memory_of(const Run& run) const;
  std::vector<Piece> pieces() const;
  void make_live(Recording& recording, const Piece& piece, Run& steps, int device) const;
  void call_live(const Recording& recording, const Piece& piece, Run& run, std::vector<torch::jit::Stack>& made) const;
  std::shared_ptr<Recording> record(State& state, Run& run, int device, void* stream);

  const Program& p_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<Making> makings_;  // in the order of the steps
  std::vector<bool> needed_;     // slots that results are made of
  std::vector<size_t> drawn_;    // steps that draw and read nothing, which each call runs
  std::vector<bool> skipped_;    // these, by step
  std::string refused_;
  const bool measured_;
  bool lends_results_ = false;
  bool over_ = false, checked_ = false, draws_ = false /* in other steps */, pretended_ = false;
  int64_t recorded_ = 0, replayed_ = 0;
};

// Whether a plan has so much to launch that it may be worth a recording by itself.
bool launches_much(const Program& program);

// For tests: plans for CPUs are "recorded", and replayed by running their steps on the memory of the recording; of
// calls that are timed, the device waits for the processor if `waits`.
void pretend_graphs(bool on, bool waits);

}  // namespace jit
