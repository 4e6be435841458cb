#include "plan_graphs.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>

#include "common.h"
#include "recording.h"

namespace jit {
namespace {

constexpr int kWarm = 2;           // calls that are run before one is recorded
constexpr size_t kFewest = 4;      // steps on the device that make a recording worth its launch and copies
constexpr size_t kStates = 8;      // kinds of calls of one plan: sizes, streams
constexpr int kAgain = 6;          // recordings of one kind of call
constexpr int kAgainMeasured = 3;  // and where nobody has asked for it
// Of plans that are recorded where it pays: launches that they have at least; calls of a kind before two are timed;
// calls until two are timed once more, where it did not pay.
constexpr size_t kMany = 12;
constexpr int kSettled = 3, kLater = 32;
// The device has waited if it took at most so many times as long as the processor, of whose time a recording then saves
// a part. Elsewhere it saves the seconds between one launch and the next, and is made if that is a part of the device's
// time. What is copied may take no longer than what is saved, at a part of the memory's rate.
constexpr double kWaits = 1.15, kShare = 0.25, kBetween = 0.8e-6, kWorth = 0.02, kRate = 0.75;
constexpr double kPretendedRate = 1.1e12;
// What one recording may keep of the device's memory, and all of them.
constexpr int64_t kOneKeeps = 32, kAllKeep = 8;  // parts
constexpr int kPatience = 3;  // of these, ones after which an input that has moved is not yet taken for one that moves

std::atomic<bool> pretending{false}, pretended_waits{false};
std::atomic<int64_t> kept_by_all{0};  // bytes of the recordings that nobody has asked for

// Takes a mutex with the GIL held: who has it may need the GIL.
class GilLock {
 public:
  explicit GilLock(std::mutex& m) : m_(m) {
    if (m_.try_lock()) return;
    PyThreadState* state = PyEval_SaveThread();
    m_.lock();
    PyEval_RestoreThread(state);
  }
  ~GilLock() { m_.unlock(); }
  GilLock(const GilLock&) = delete;

 private:
  std::mutex& m_;
};

// Recordings on one stream share memory: nothing comes between the copies and launches of one. Not one mutex for all,
// since a launch may wait for another process, or for another thread's device, in a collective.
std::mutex& launching(int device, void* stream) {
  static std::mutex adding;
  static auto* mutexes = new std::map<std::pair<int, void*>, std::mutex>();  // others may be launching at the end
  std::lock_guard<std::mutex> lock(adding);
  return (*mutexes)[{device, stream}];
}

// Memory of a recording that tensors of a call have.
struct Lease {
  Tensor memory;
  std::shared_ptr<std::atomic<int>> count;
};

void end_lease(void* context) {
  auto* lease = static_cast<Lease*>(context);
  --*lease->count;
  delete lease;
}

bool is_lent(const Tensor& t) { return t.has_storage() && t.storage().data_ptr().get_deleter() == &end_lease; }

// A name of PyTorch's, which is a text up to some version and a number in later ones.
struct Word {
  int number;
  const char* text;
  template <typename T>
  operator T() const {
    if constexpr (std::is_enum_v<T>) return static_cast<T>(number);
    else return T(text);
  }
};

// What library calls ask of PyTorch, beside their arguments, when they choose a kernel.
uint64_t switches() {
  const at::Context& c = at::globalContext();
  uint64_t word = 0;
  auto add = [&](int v, int bits) { word = word << bits | (uint64_t)v; };
  auto numbered = [](const auto& found) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(found)>>) return (int)found;
    else return found == "tf32" ? 1 : found == "ieee" ? 2 : found == "bf16" ? 3 : 0;
  };
  auto precision = [&](Word op) { return numbered(c.float32Precision(Word{1, "cuda"}, op)); };
  add(c.userEnabledCuDNN(), 1);
  add(c.benchmarkCuDNN(), 1);
  add(c.deterministicCuDNN(), 1);
  add(c.userEnabledFlashSDP(), 1);
  add(c.userEnabledMemEfficientSDP(), 1);
  add(c.userEnabledMathSDP(), 1);
  add(c.userEnabledCuDNNSDP(), 1);
  add(c.allowFP16BF16ReductionMathSDP(), 1);
  add(c.deterministicAlgorithms(), 1);
  add(c.deterministicFillUninitializedMemory(), 1);
  add(c.allowFP16AccumulationCuBLAS(), 1);
  add((int)c.allowFP16ReductionCuBLAS(), 3);
  add((int)c.allowBF16ReductionCuBLAS(), 3);
  add(precision({1, "conv"}), 3);
  add(precision({3, "matmul"}), 3);
  return word;
}

Tensor empty_like(const Tensor& t) {
  return new_tensor(new_storage((size_t)bytes_of(t), t.device()), t.dtype(), t.device(), t.sizes(), t.strides(), 0);
}

// A function as Python may call it, of the handle of a stream.
using Body = std::function<void(void*)>;
PyObject* call_function(PyObject* capsule, PyObject* argument) {
  auto* f = static_cast<Body*>(PyCapsule_GetPointer(capsule, "jit.body"));
  if (!f) return nullptr;
  (*f)(PyLong_AsVoidPtr(argument));
  return Py_NewRef(Py_None);
}
PyMethodDef body_method = {"body", Entry<call_function>::call, METH_O, nullptr};

Ref python(const char* name) {
  Ref module = Ref::steal(checked(PyImport_ImportModule("jit.runtime.cuda_graphs")));
  return Ref::steal(checked(PyObject_GetAttrString(module.get(), name)));
}

// The text of the Python error that is set, which is cleared; an interrupt and the like is thrown on.
std::string error_text() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw PythonError();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref t = Ref::steal(type), v = Ref::steal(value), b = Ref::steal(traceback);
  Ref text = Ref::steal(value ? PyObject_Str(value) : nullptr);
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  std::string said = utf8 ? utf8 : "an error";
  PyErr_Clear();
  return said.substr(0, said.find('\n'));
}

}  // namespace

Recording::~Recording() {
  kept_by_all -= kept;
  for (const Piece& piece : pieces) destroy_graph(piece.executable);
  if (!graph || shutting_down()) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  Py_CLEAR(graph);
  PyGILState_Release(gil);
}

// Calls of one kind.
struct Graphs::State {
  int device;
  void* stream;
  uint64_t switches;
  size_t n_public;
  std::vector<int64_t> regs;
  int calls = 0, again = 0;
  bool over = false, kept = false;  // `kept`: the caller has had results of one call until another
  std::shared_ptr<Timing> timing;   // of the call before, where it is timed
  int timed_from = kSettled, paid = 0;
  double saved = 0;               // seconds of a call, at the least
  std::vector<const void*> last;  // addresses of the inputs in the call before
  std::vector<uint8_t> moved;     // how often an input lay elsewhere than before
  std::shared_ptr<Recording> recording;
};

Graphs::Graphs(const Program& program, bool measured) : p_(program), measured_(measured) {}
Graphs::~Graphs() = default;

void pretend_graphs(bool on, bool waits) {
  pretending = on;
  pretended_waits = waits;
}

bool launches_much(const Program& p) { return launches_of(p) >= kMany || (pretending && pretended_waits); }

Timing::~Timing() {
  destroy_event(first_);
  destroy_event(last_);
  for (auto& [from, to] : rests_) {
    destroy_event(from);
    destroy_event(to);
  }
}

void Timing::mark(void* stream, bool rests) noexcept {
  if (!first_) return;
  try {
    void* event = record_event(nullptr, stream);
    if (rests) rests_.emplace_back(event, nullptr);
    else if (!rests_.empty()) rests_.back().second = event;
  } catch (const std::exception&) {  // as in `begin`; without its end it is no rest
  }
}

void Timing::begin(void* stream) noexcept {
  try {
    if (!pretending) first_ = record_event(first_, stream);
  } catch (const std::exception&) {  // of the device: the next step meets it too
  }
  start_ = std::chrono::steady_clock::now();
}

void Timing::end(void* stream) noexcept {
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  try {
    if (first_) last_ = record_event(last_, stream);
    over_ = true;
  } catch (const std::exception&) {
  }
}

bool Timing::is_done() const { return over_ && (!first_ || has_happened(last_)); }

double Timing::saved(size_t launches) const {
  if (!first_) return pretending && pretended_waits ? kShare * seconds_ : 0;
  double device = seconds_between(first_, last_), between = kBetween * (double)launches;
  for (auto& [from, to] : rests_)
    if (to) device -= seconds_between(from, to);
  if (device <= kWaits * seconds_) return kShare * seconds_;
  return between >= kWorth * device ? between : 0;
}

// Whether a recording would save time, as two calls of a kind tell; sees to it that calls are timed.
bool Graphs::pays(State& s, Run& run) const {
  if (s.paid == 2) return true;
  if (s.timing && s.timing->is_over()) {
    if (!s.timing->is_done()) return false;  // a later call asks again
    if (double saved = s.timing->saved(launches_of(p_))) {
      s.saved = s.paid ? std::min(s.saved, saved) : saved;
      if (++s.paid == 2) {
        s.timing.reset();
        return true;
      }
    } else if (s.timed_from == kSettled) {
      s.timed_from = s.calls + kLater;
      s.paid = 0;
    } else {
      s.over = true;
    }
  }
  s.timing.reset();
  if (s.over || s.calls < s.timed_from) return false;
  s.timing = std::make_shared<Timing>();
  run.time(s.timing);
  return false;
}

// Bytes that the steps of a run take, all together.
int64_t Graphs::memory_of(const Run& run) const {
  int64_t bytes = 0;
  for (const Step& s : p_.steps)
    if (s.op == Step::kArena) bytes += run.reg(s.reg);
    else if (s.op == Step::kAlloc) bytes += run.bytes_of(s.desc);
  return bytes;
}

// Why a recording is not worth what it costs, or nothing.
std::string Graphs::too_much(const Recording& r, const State& state, int64_t kept) const {
  int64_t copied = 0;
  for (const Recording::Input& in : r.inputs)
    if (in.how == Recording::kCopied) copied += in.bytes * (1 + in.back);
  for (const Recording::Owner& o : r.owners)
    if (!o.lent) copied += o.bytes;
  for (const Live& l : r.lives)
    if (l.copied.defined()) copied += bytes_of(l.copied);
  double rate = kRate * (pretended_ ? kPretendedRate : device_memory_rate());
  if (2 * copied > rate * state.saved) return "copies of inputs and results would take too long";
  if (pretended_) return "";
  int64_t memory = device_memory();
  if (kept > memory / kOneKeeps || kept_by_all + kept > memory / kAllKeep) return "it would keep too much memory";
  return "";
}

void Graphs::refuse(const std::string& reason) {
  refused_ = reason;
  Ref tell = python("refused");
  Ref said = Ref::steal(PyObject_CallFunction(tell.get(), "ns", (Py_ssize_t)p_.steps.size(), reason.c_str()));
  if (!said) error_text();
}

// Finds the draws that can be made before all else.
void Graphs::find_draws() {
  skipped_.assign(p_.steps.size(), false);
  std::function<bool(const AtenArg&)> fixed = [&](const AtenArg& a) {
    return a.kind == AtenArg::kConst || a.kind == AtenArg::kReg || a.kind == AtenArg::kRegs ||
           (a.kind == AtenArg::kList && std::all_of(a.parts.begin(), a.parts.end(), fixed));
  };
  for (size_t k = 0; k < p_.steps.size(); ++k) {
    const Step& s = p_.steps[k];
    if (!s.aten || !s.aten->draws) continue;
    if (s.op != Step::kAten || s.aten->outs.size() != 1 || s.aten->outs[0] < 0 ||
        !std::all_of(s.aten->args.begin(), s.aten->args.end(), fixed))
      draws_ = true;
    drawn_.push_back(k);
  }
  if (draws_) drawn_.clear();  // the order of draws is kept
  for (size_t k : drawn_) skipped_[k] = true;
}

void Graphs::draw(Run& run, int device, void* stream) const {
  if (drawn_.empty()) return;
  c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  for (size_t k : drawn_) run.one_step(k, device, stream);
}

// Fills in what makes the results; gives the reason if that cannot be told, or nothing.
std::string Graphs::find_makings() {
  needed_.assign(p_.n_slots, false);
  std::vector<bool> is_public(p_.n_slots, false), made(p_.n_slots, false);
  for (int32_t s : p_.outputs)
    if (s >= p_.n_inputs) needed_[s] = true;
  auto is_view = [](const Step& s) { return s.op == Step::kView; };
  for (size_t k = p_.steps.size(); k-- > 0;) {
    const Step& s = p_.steps[k];
    if (skipped_[k]) continue;
    auto making = [&](int32_t slot, bool owner) { makings_.push_back({&s, slot, owner}); };
    if (s.aten) {
      for (int32_t slot : s.aten->outs)
        if (slot >= 0 && needed_[slot]) {
          if (made[slot]) return "a result is made twice";
          made[slot] = true;
          making(slot, true);
        }
    } else if (s.dst >= 0 && needed_[s.dst] && s.op != Step::kCopy && s.op != Step::kFree && s.op != Step::kCheck) {
      if (made[s.dst]) return "a result is made twice";
      made[s.dst] = true;
      if (!is_view(s) && s.op != Step::kAlloc) return "a result lies among temporaries";
      making(s.dst, !is_view(s));
      if (is_view(s) && s.src >= p_.n_inputs) needed_[s.src] = true;
    }
  }
  std::reverse(makings_.begin(), makings_.end());
  return "";
}

// Why no call of the plan can be recorded, or nothing.
std::string Graphs::unsuitable(bool pretended) const {
  size_t work = 0;
  for (const Step& s : p_.steps) {
    switch (s.op) {
      case Step::kFlag:
      case Step::kCheck: return "a kernel on the CPU checks indices";
      case Step::kVjp: return "a gradient is computed by PyTorch's autograd: " + s.aten->name;
      case Step::kCpu:
        if (!pretended) return "a kernel runs on the CPU";
        ++work;
        break;
      case Step::kAlloc:
      case Step::kArena:
        if (s.desc.device.is_cpu() && !pretended) return "memory of the CPU is needed";
        break;
      case Step::kGpu:
        if (pretended) return "a kernel runs on a GPU";
        ++work;
        break;
      case Step::kCopy: ++work; break;
      case Step::kAten: {
        const AtenStep& a = *s.aten;
        if (a.is_live()) {
          std::string why = not_live(a);
          if (!why.empty()) return why;
          break;
        }
        if (a.once || (a.name.rfind("aten::", 0) != 0 && a.name.rfind("prims::", 0) != 0))
          return a.name + " may do more than its schema says";
        if (draws_ && pretended) return "random numbers are drawn";
        for (const AtenArg& arg : a.args) {
          if (arg.kind != AtenArg::kConst) continue;
          if (arg.constant.isGenerator()) return a.name + " is given a generator";
          if (arg.constant.isDevice() && arg.constant.toDevice().is_cpu() && !pretended)
            return a.name + " makes a tensor on the CPU";
        }
        ++work;
        break;
      }
      default: break;
    }
  }
  if (work < kFewest && !pretended) return "there are few steps";
  return "";
}

Graphs::State* Graphs::state_of(const Run& run, int device, void* stream, size_t n_public) {
  const int64_t* regs = run.regs();
  uint64_t set = switches();
  for (auto& s : states_) {
    if (s->device != device || s->stream != stream || s->switches != set || s->n_public != n_public) continue;
    bool same = true;
    for (size_t k = 0; k < p_.computed.size() && same; ++k) same = s->regs[k] == regs[p_.computed[k]];
    if (same) return s.get();
  }
  if (states_.size() == kStates) return nullptr;
  auto s = std::make_unique<State>();
  s->device = device;
  s->stream = stream;
  s->switches = set;
  s->n_public = n_public;
  for (int32_t i : p_.computed) s->regs.push_back(regs[i]);
  s->last.assign(p_.n_inputs, nullptr);
  s->moved.assign(p_.n_inputs, 0);
  states_.push_back(std::move(s));
  return states_.back().get();
}

// Whether the inputs that a recording has in place are there; notes those that are not.
bool Graphs::in_place(const Recording& recording, Run& run, State& state) const {
  bool all = true;
  for (int32_t i = 0; i < p_.n_inputs; ++i) {
    const Recording::Input& in = recording.inputs[i];
    if (in.how != Recording::kInPlace || run.address_of(i) == in.address) continue;
    state.moved[i] += 1 + (state.again >= kPatience);
    all = false;
  }
  return all;
}

std::shared_ptr<Recording> Graphs::serve(Run& run, int device, void* stream, size_t n_public) {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || over_) return nullptr;  // another thread is about to record
  const bool pretended = pretending && device < 0;
  if (!checked_) {
    checked_ = true;
    pretended_ = pretended;
    find_draws();
    std::string why = unsuitable(pretended);
    if (why.empty()) why = find_makings();
    if (!why.empty()) {
      over_ = true;
      refuse(why);
      return nullptr;
    }
  }
  if (pretended != pretended_ || (device < 0 && !pretended) || (!pretended && is_capturing(stream))) return nullptr;
  State* s = state_of(run, device, stream, n_public);
  if (!s || s->over) return nullptr;
  if (s->recording) {
    if (in_place(*s->recording, run, *s)) {
      if (s->recording->leases->load() > 0) return nullptr;
      if (s->recording->results->load() == 0) {
        draw(run, device, stream);
        ++replayed_;
        return s->recording;
      }
      s->kept = true;
    }
    s->recording.reset();
    if (++s->again >= (measured_ ? kAgainMeasured : kAgain)) {
      s->over = true;
      return nullptr;
    }
  } else {
    for (int32_t i = 0; i < p_.n_inputs; ++i) {
      const void* at = run.address_of(i);
      // One move is forgiven an input only once it has been recorded.
      if (s->calls > 0 && at != s->last[i]) s->moved[i] = 2;
      s->last[i] = at;
    }
    if (s->calls++ < (measured_ ? 0 : kWarm) || (measured_ && !pays(*s, run))) return nullptr;
  }
  draw(run, device, stream);
  s->recording = record(*s, run, device, stream);
  if (s->recording) ++replayed_;
  else run.undo_draws();
  return s->recording;
}

std::shared_ptr<Recording> Graphs::record(State& state, Run& run, int device, void* stream) {
  auto give_up = [&](const std::string& why) -> std::shared_ptr<Recording> {
    state.over = true;
    refuse(why);
    return nullptr;
  };
  auto made = std::make_shared<Recording>();
  Recording& r = *made;
  std::vector<Tensor> stand_ins(p_.n_inputs);  // what the steps are run on instead of an input
  const bool lends = lends_results_ && !state.kept;
  try {
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    r.inputs.resize(p_.n_inputs);
    for (int32_t i = 0; i < p_.n_inputs; ++i) {
      if (!p_.reads[i]) continue;
      const Tensor& t = run.tensor_of(i);
      Recording::Input& in = r.inputs[i];
      bool here = pretended_ ? t.is_cpu() : t.is_cuda() && t.get_device() == device;
      if (!here || !t.has_storage() || t.layout() != at::kStrided || t.is_conj() || t.is_neg())
        return give_up("input " + std::to_string(i) + " is on another device, or laid out in a way of its own");
      in.bytes = bytes_of(t);
      bool aligned = pretended_ || reinterpret_cast<uintptr_t>(address_of(t)) % 16 == 0 ||
                     std::find(p_.aligned.begin(), p_.aligned.end(), i) == p_.aligned.end();
      bool written = std::find(p_.mutates.begin(), p_.mutates.end(), i) != p_.mutates.end();
      if (aligned && (state.moved[i] < 2 || is_lent(t))) {
        in.how = Recording::kInPlace;
        in.address = address_of(t);
      } else {
        if (in.bytes > 2 * t.numel() * (int64_t)t.itemsize() + 4096 || (written && !t.is_non_overlapping_and_dense()))
          return give_up("input " + std::to_string(i) + " moves, and has gaps");
        in.how = Recording::kCopied;
        in.buffer = empty_like(t);
        in.address = address_of(in.buffer);
        in.back = written;
        stand_ins[i] = in.buffer;
      }
      // What is pretended to be recorded is run, and may not change anything.
      if (pretended_) stand_ins[i] = fresh_copy(t, t.strides());
    }
    Run steps(p_);
    for (int32_t i = 0; i < p_.n_inputs; ++i)
      steps.set_input(i, stand_ins[i].defined() ? stand_ins[i] : run.tensor_of(i));
    for (size_t k : drawn_) {
      int32_t slot = p_.steps[k].aten->outs[0];
      r.drawn.push_back({slot, fresh_copy(run.tensor_of(slot), run.tensor_of(slot).strides())});
      steps.put(slot, Tensor(r.drawn.back().buffer));
    }
    steps.take_regs(run);
    steps.keep(&needed_);
    steps.skip(&skipped_);
    r.pieces = pieces();
    Body body = [&](void* side) {
      OwnCapture own;
      for (Piece& piece : r.pieces) {
        if (piece.live >= 0) {
          make_live(r, piece, steps, device);
          continue;
        }
        if (draws_ || pretended_ || !launches_of(p_, piece.from, piece.to)) {
          steps.steps_from(piece.from, piece.to, device, side);
          continue;
        }
        begin_capture(side);
        try {
          steps.steps_from(piece.from, piece.to, device, side);
        } catch (...) {
          abort_capture(side);
          throw;
        }
        piece.executable = instantiate_graph(end_capture(side));
      }
    };
    if (pretended_) {
      body(nullptr);
      r.regs.assign(run.regs(), run.regs() + p_.regs.size());
    } else {
      Ref record = python("record");
      Ref capsule = Ref::steal(checked(PyCapsule_New(&body, "jit.body", nullptr)));
      Ref function = Ref::steal(checked(PyCFunction_New(&body_method, capsule.get())));
      Ref handle = Ref::steal(checked(PyLong_FromVoidPtr(stream)));
      bool apart = lends || state.n_public < p_.outputs.size();
      r.graph = checked(PyObject_CallFunction(record.get(), "iOOOO", device, handle.get(), function.get(),
                                              draws_ ? Py_True : Py_False, apart ? Py_True : Py_False));
    }
    // Which results are the caller's, and who owns their memory.
    std::vector<bool> is_public(p_.n_slots, false);
    for (size_t k = 0; k < p_.outputs.size(); ++k)
      if (k < state.n_public) is_public[p_.outputs[k]] = true;
    for (size_t k = makings_.size(); k-- > 0;) {
      const Making& m = makings_[k];
      if (!m.owner && is_public[m.slot]) is_public[m.step->src] = true;
    }
    std::vector<const void*> storages;
    for (const Recording::Drawn& d : r.drawn) storages.push_back(d.buffer.storage().unsafeGetStorageImpl());
    for (int32_t i = 0; i < p_.n_inputs; ++i)
      if (r.inputs[i].how != Recording::kUnread)
        storages.push_back(steps.tensor_of(i).storage().unsafeGetStorageImpl());
    for (const Making& m : makings_) {
      if (!m.owner) continue;
      const Tensor& t = steps.tensor_of(m.slot);
      if (!t.defined() || !t.has_storage() || (!pretended_ && !t.is_cuda()))
        return give_up("a result is not on the GPU, or has no memory");
      const void* storage = t.storage().unsafeGetStorageImpl();
      if (std::find(storages.begin(), storages.end(), storage) != storages.end())
        return give_up("two results of library calls share memory");
      storages.push_back(storage);
      Recording::Owner o;
      o.address = address_of(t);
      o.bytes = bytes_of(t);
      o.sizes.assign(t.sizes().begin(), t.sizes().end());
      o.strides.assign(t.strides().begin(), t.strides().end());
      o.meta = t.dtype();
      o.result = is_public[m.slot];
      o.lent = (lends || !o.result) && o.bytes > 0;
      if (o.lent || pretended_) o.memory = t;
      r.owners.push_back(std::move(o));
    }
    if (measured_) {
      int64_t kept = memory_of(steps);
      for (const Live& l : r.lives)
        if (l.copied.defined()) kept += bytes_of(l.copied);
      std::string why = too_much(r, state, kept);
      if (!why.empty()) return give_up(why);
      kept_by_all += r.kept = kept;
    }
  } catch (const PythonError&) {
    return give_up(error_text());
  } catch (const std::exception& e) {
    std::string text = e.what();
    return give_up(text.substr(0, text.find('\n')));
  }
  ++recorded_;
  return made;
}

void Graphs::prepare(const Recording& r, Run& run, int device) const {
  faults.reach("the results of a recording");
  size_t k = 0;
  for (const Making& m : makings_) {
    if (!m.owner) {
      run.make(*m.step, device);
      continue;
    }
    const Recording::Owner& o = r.owners[k++];
    auto where = pretended_ ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, (c10::DeviceIndex)device);
    c10::intrusive_ptr<c10::StorageImpl> storage;
    if (!o.lent) {
      storage = new_storage((size_t)o.bytes, where);
    } else {
      const auto& count = o.result ? r.results : r.leases;
      ++*count;
      auto* lease = new Lease{o.memory, count};
      storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), o.bytes,
                                                      c10::DataPtr(o.address, lease, &end_lease, where), nullptr,
                                                      /*resizable=*/false);
    }
    run.put(m.slot, new_tensor(std::move(storage), o.meta, where, o.sizes, o.strides, 0));
  }
  faults.reach("the end of a plan");
}

void Graphs::launch(Recording& r, Run& run, int device, void* stream) {
  std::vector<Block> before, after;
  for (int32_t i = 0; i < p_.n_inputs; ++i) {
    const Recording::Input& in = r.inputs[i];
    if (in.how != Recording::kCopied || in.bytes == 0) continue;
    before.push_back({in.address, run.address_of(i), in.bytes});
    if (in.back) after.push_back({run.address_of(i), in.address, in.bytes});
  }
  for (const Recording::Drawn& d : r.drawn)
    before.push_back({address_of(d.buffer), run.address_of(d.slot), bytes_of(d.buffer)});
  size_t k = 0;
  for (const Making& m : makings_) {
    if (!m.owner) continue;
    const Recording::Owner& o = r.owners[k++];
    if (!o.lent && o.bytes) after.push_back({run.address_of(m.slot), o.address, o.bytes});
  }
  GilLock lock(launching(device, stream));
  auto copy = [&](const std::vector<Block>& blocks) {
    if (!pretended_) return copy_blocks(device, stream, blocks.data(), blocks.size());
    for (const Block& b : blocks) std::memcpy(b.to, b.from, (size_t)b.bytes);
  };
  copy(before);
  if (pretended_) {
    Run steps(p_);
    std::vector<Tensor> inputs(p_.n_inputs);
    for (int32_t i = 0; i < p_.n_inputs; ++i) {
      inputs[i] =
          r.inputs[i].how == Recording::kUnread ? run.tensor_of(i) : placed(run.tensor_of(i), r.inputs[i].address);
      steps.set_input(i, inputs[i]);
    }
    for (const Recording::Drawn& d : r.drawn) steps.put(d.slot, Tensor(d.buffer));
    steps.take_regs(run);
    steps.keep(&needed_);
    steps.skip(&skipped_);
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    int64_t points = faults.left.exchange(-1);  // a launch has none
    for (const Piece& piece : r.pieces) {
      if (piece.live >= 0) {
        pybind11::gil_scoped_release no_gil;
        const AtenStep& a = *p_.steps[piece.from].aten;
        torch::jit::Stack stack = steps.arguments_of(a);
        run.call(a, stack);
        steps.take_results(a, stack);
      } else {
        steps.steps_from(piece.from, piece.to, device, stream);
      }
    }
    faults.left = points;
    k = 0;
    for (const Making& m : makings_) {
      if (!m.owner) continue;
      const Recording::Owner& o = r.owners[k++];
      if (o.bytes) std::memcpy(o.address, steps.address_of(m.slot), (size_t)o.bytes);
    }
  } else {
    std::vector<torch::jit::Stack> made;
    for (const Piece& piece : r.pieces) {
      if (piece.live >= 0) {
        pybind11::gil_scoped_release no_gil;
        c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
        call_live(r, piece, run, made);
      } else if (piece.executable) {
        launch_graph(piece.executable, stream);
      } else if (draws_) {
        Ref done = Ref::steal(checked(PyObject_CallMethod(r.graph, "replay", nullptr)));
      }
    }
  }
  copy(after);
}

PyObject* Graphs::told() const {
  return Py_BuildValue("{sLsLsz}", "recorded", (long long)recorded_, "replayed", (long long)replayed_, "refused",
                       refused_.empty() ? nullptr : refused_.c_str());
}

}  // namespace jit
