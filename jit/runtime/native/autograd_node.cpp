// The node of autograd's graph behind the results of a compiled forward: its apply runs the backward plan, with no
// Python in between.
#include <ATen/ExpandUtils.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <mutex>

#include "grad_program.h"
#include "plan.h"
#include "plan_object.h"

namespace jit {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePtr = decltype(torch::autograd::Edge::function);  // a shared_ptr up to torch 2.11, then an intrusive_ptr

template <typename T, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>)
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  else return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

c10::DispatchKeySet below_autograd() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// Tensors that no kernel may read as they are: subclasses and what torch.vmap and torch.func wrap.
bool is_foreign(const at::Tensor& t) {
  static const c10::DispatchKeySet keys({c10::DispatchKey::Python, c10::DispatchKey::Batched,
                                         c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                         c10::DispatchKey::Functionalize});
  return t.key_set().has_any(keys);
}

// What a plan was told of a tensor.
struct Layout {
  at::ScalarType dtype;
  c10::Device device;
  c10::SmallVector<int64_t, 10> dims;  // sizes, then strides

  explicit Layout(const at::Tensor& t) : dtype(t.scalar_type()), device(t.device()) {
    dims.append(t.sizes().begin(), t.sizes().end());
    dims.append(t.strides().begin(), t.strides().end());
  }
  c10::IntArrayRef sizes() const { return {dims.data(), dims.size() / 2}; }
  c10::IntArrayRef strides() const { return {dims.data() + dims.size() / 2, dims.size() / 2}; }

  at::Tensor empty() const {
    return new_tensor(new_storage((size_t)extent_bytes(sizes(), strides(), (int64_t)c10::elementSize(dtype)), device),
                      c10::scalarTypeToTypeMeta(dtype), device, sizes(), strides(), 0);
  }

  at::Tensor zeros() const {
    c10::impl::ExcludeDispatchKeyGuard below(below_autograd());
    at::Tensor t = empty();
    t.zero_();
    return t;
  }

  // A tensor of this layout with no memory, for a plan that reads its sizes only.
  at::Tensor nothing() const {
    return new_tensor(new_storage(0, device), c10::scalarTypeToTypeMeta(dtype), device, sizes(), strides(), 0);
  }

  // Whether a kernel may read a tensor as one of this layout; raises where it cannot be made one.
  bool fits(const at::Tensor& t, const char* what) const {
    static const c10::DispatchKeySet lazy(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    TORCH_CHECK(t.sizes() == sizes() && t.device() == device && !is_foreign(t), "jit: ", what, " is a ", t.toString(),
                " of sizes ", t.sizes(), " on ", t.device(), " where one of sizes ", sizes(), " on ", device,
                " is needed");
    if (t.layout() != at::kStrided || t.scalar_type() != dtype || t.key_set().has_any(lazy)) return false;
    bool fine = true;
    for (size_t i = 0; i < sizes().size(); ++i) fine &= t.stride((int64_t)i) == strides()[i] || sizes()[i] == 1;
    return fine || t.numel() == 0;
  }

  // The same values as this layout has them.
  at::Tensor conform(at::Tensor&& t, const char* what) const {
    if (fits(t, what)) return std::move(t);
    c10::impl::ExcludeDispatchKeyGuard below(below_autograd());
    if (t.layout() != at::kStrided) t = t.to_dense();
    at::Tensor copy = empty();
    copy.copy_(t);
    return copy;
  }

  // The same by operators that autograd records.
  at::Tensor conform_recorded(const at::Tensor& t, const char* what) const {
    if (fits(t, what)) return t;
    at::Tensor copy = at::empty_strided(sizes(), strides(), at::TensorOptions().dtype(dtype).device(device));
    copy.copy_(t.layout() == at::kStrided ? t : t.to_dense());
    return copy;
  }
};

class CompiledNode final : public Node {
 public:
  CompiledNode(std::shared_ptr<const GradProgram> program, torch::autograd::edge_list&& next)
      : Node(std::move(next)), program_(std::move(program)) {}

  std::string name() const override { return program_->name; }

  void save(const at::Tensor& t, bool is_output) {
    saved_.emplace_back(t, is_output);
    // A hook may give back other strides than it was given.
    if (saved_.back().has_hooks()) hooked_.emplace_back(saved_.size() - 1, Layout(t));
    if (program_->in_part[saved_.size() - 1]) in_part_.emplace_back(saved_.size() - 1, Layout(t));
  }

  // Keeps an input that only ``second`` needs.
  void keep(const at::Tensor& t, bool by_edge) {
    uint32_t version = t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version();
    // One with a history is kept without it, so that writing to the tensor later makes no cycle through this node.
    kept_.push_back({by_edge && !t.is_leaf() ? t.tensor_data() : t, version});
  }

  // Remembers the version of what eager keeps, and not the tensor.
  void watch(const at::Tensor& t, int32_t writes) {
    if (t.is_inference()) return watched_.push_back({c10::VariableVersion(0), 0});
    const c10::VariableVersion& counter = t.unsafeGetTensorImpl()->version_counter();
    watched_.push_back({counter, counter.current_version() + (uint32_t)writes});
  }

  // A tangent is laid out as ``torch.empty_like`` of its output.
  void tangent(const at::Tensor& t) {
    tangents_.emplace_back(t);
    if (t.is_non_overlapping_and_dense()) return;
    auto strides = at::infer_dense_strides(t.sizes(), t.strides());
    std::copy(strides.begin(), strides.end(), tangents_.back().dims.begin() + t.dim());
  }
  void integer(int64_t v) { ints_.push_back(v); }

  // Keeps an integer that the forward was called with, for ``second``.
  void argument(int64_t v) { arguments_.push_back(v); }

  void will_release_variables() override { releasing_ = true; }

  // What a backward has walked is given up when it reads the saved values; without one there is nothing to be walked
  // again.
  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!walked_) forget();
  }

 protected:
  variable_list apply(variable_list&& given) override {
    bool any = false, all = true, foreign = false;
    for (auto& t : given) {
      any |= t.defined();
      all &= t.defined();
      foreign |= t.defined() && is_foreign(t);
    }
    if (!any) return variable_list(num_outputs());
    if (c10::GradMode::is_enabled() || foreign) return replay(std::move(given), foreign);
    const GradProgram& p = *program_;
    variable_list gradients(num_outputs());
    c10::SmallVector<bool, 16> wanted(p.wrt.size());
    c10::SmallVector<bool, 8> serves(given.size(), p.depends.empty());
    bool some = false;
    for (size_t k = 0; k < p.wrt.size(); ++k) {
      // Undefined where eager has no path: a gradient is then None and not zero.
      bool reached = p.grads[k] >= 0 && p.depends.empty(), asked = task_should_compute_output(k);
      if (p.grads[k] >= 0 && !p.depends.empty())
        for (int32_t t : p.depends[k]) {
          reached |= given[t].defined();
          serves[t] |= asked;
        }
      wanted[k] = reached && asked;
      some |= wanted[k];
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      walked_ = true;
      if (!some) {
        releasing_ = false;
        return gradients;
      }
      // What tangents that lead to nothing asked for would read may be gone.
      for (size_t t = 0; t < given.size() && !gone_.empty(); ++t)
        if (!serves[t] && given[t].defined()) {
          given[t].reset();
          all = false;
        }
    }
    std::shared_ptr<const Program> narrowed;
    if (!all) {
      std::vector<bool> present(given.size());
      for (size_t i = 0; i < given.size(); ++i) present[i] = given[i].defined();
      narrowed = p.narrowed(present);
    }
    const Program& backward = narrowed ? *narrowed : *p.backward;
    {
      Run run(backward);
      lend_saved(run, given, backward);
      for (size_t i = 0; i < tangents_.size(); ++i) {
        at::Tensor t = std::move(given[i]);
        run.own_input((int)(p.saved.size() + i), t.defined() ? tangents_[i].conform(std::move(t), "a gradient")
                                                 : narrowed  ? tangents_[i].nothing()
                                                             : tangents_[i].zeros());
      }
      run.evaluate_regs(ints_.data());
      std::optional<jit::Watched> watched;
      if (C10_UNLIKELY(is_watched())) watched.emplace();
      PlanRange range(*p.backward, run);
      execute(backward, run, /*gil_held=*/false, backward.outputs.size(), [&] {
        for (size_t k = 0; k < p.wrt.size(); ++k)
          if (wanted[k]) gradients[k] = run.plain_result(backward.outputs[p.grads[k]]);
      });
    }
    // What is returned may be written to by its new owner, as a leaf's gradient is: its memory has to be nobody else's.
    for (auto& g : gradients) {
      if (!g.defined() || (g.use_count() <= 1 && g.unsafeGetTensorImpl()->unsafe_storage().use_count() <= 1)) continue;
      c10::impl::ExcludeDispatchKeyGuard below(below_autograd());
      g = fresh_copy(g, g.strides());
    }
    return gradients;
  }

 private:
  struct Kept {
    at::Tensor tensor;
    uint32_t version;
  };
  struct Watched {
    c10::VariableVersion counter;
    uint32_t version;
  };

  void forget() {
    for (auto& s : saved_) s.reset_data();
    kept_.clear();
    forgotten_ = true;
  }

  // What eager would walk from the given tangents to what is wanted, and whether it frees that.
  struct Way {
    c10::SmallVector<size_t, 8> classes;
    bool frees;
    bool all;  // nothing else is left to be walked
  };

  // Raises where eager would find something freed. With the lock held.
  Way walk(const variable_list& given) {
    const GradProgram& p = *program_;
    Way way{{}, releasing_.exchange(false), !p.open};
    walked_ = true;
    freed_.resize(p.keeps.size());
    for (size_t c = 0; c < p.keeps.size(); ++c) {
      const auto& keeps = p.keeps[c];
      bool from = false, to = false, edge = false;
      for (size_t t = 0; t < given.size() && !from; ++t) from = keeps.tangents[t] && given[t].defined();
      for (size_t k = 0; k < p.wrt.size() && !to; ++k)
        if (keeps.wrt[k] && next_edge(k).is_valid()) edge = true, to = task_should_compute_output(k);
      if (from && to) {
        TORCH_CHECK(!freed_[c], torch::autograd::ERR_BACKWARD_TWICE);
        way.classes.push_back(c);
      } else if (edge && !freed_[c]) {
        way.all = false;
      }
    }
    TORCH_CHECK(!forgotten_ || (way.classes.empty() && saved_.empty()), torch::autograd::ERR_BACKWARD_TWICE);
    for (size_t i = 0; i < watched_.size(); ++i) {
      uint32_t version = watched_[i].counter.current_version();
      TORCH_CHECK(version == watched_[i].version || !leads(p.watched[i].way, given),
                  "one of the variables needed for gradient computation has been modified by an inplace operation: ",
                  p.watched[i].kind == GradProgram::kInput ? "input " : "result ", p.watched[i].index,
                  " of the compiled function is at version ", version, "; expected version ", watched_[i].version,
                  " instead (", p.forward->shown, ")");
    }
    return way;
  }

  // Whether a tangent is given from which a wanted gradient is computed by such a way.
  bool leads(const GradProgram::Kept& keeps, const variable_list& given) {
    bool from = false, to = false;
    for (size_t t = 0; t < given.size() && !from; ++t) from = keeps.tangents[t] && given[t].defined();
    for (size_t k = 0; k < program_->wrt.size() && !to; ++k)
      to = keeps.wrt[k] && next_edge(k).is_valid() && task_should_compute_output(k);
    return from && to;
  }

  void leave(const Way& way) {
    if (!way.frees || way.classes.empty()) return;
    for (size_t c : way.classes) freed_[c] = true;
    if (way.all) all_freed_ = true;
  }

  // Of which tangents no gradient can be had any more.
  std::vector<bool> over() const {
    const GradProgram& p = *program_;
    std::vector<bool> found(p.tangents.size());
    for (size_t t = 0; t < p.tangents.size(); ++t)
      for (size_t c = 0; c < p.keeps.size() && !found[t]; ++c) {
        if (!freed_[c] || !p.keeps[c].tangents[t]) continue;
        bool dead = true;
        for (size_t k = 0; k < p.wrt.size() && dead; ++k)
          dead = p.keeps[c].wrt[k] || !next_edge(k).is_valid() || !reaches(t, k);
        found[t] = dead;
      }
    return found;
  }

  // Whether all gradients that read a saved value can be had no more.
  static bool is_over(const std::vector<bool>& uses, const std::vector<bool>& over) {
    for (size_t t = 0; t < uses.size(); ++t)
      if (uses[t] && !over[t]) return false;
    return true;
  }

  // Whether the gradient of an input depends on a tangent.
  bool reaches(size_t t, size_t k) const {
    const GradProgram& p = *program_;
    if (p.grads[k] < 0) return false;
    return p.depends.empty() || std::find(p.depends[k].begin(), p.depends[k].end(), (int32_t)t) != p.depends[k].end();
  }

  // Memory of no size in the place of each saved value that a backward does not read: it may be gone, or have been
  // written since.
  std::vector<at::Tensor> unread(const Program& backward) const {
    std::vector<at::Tensor> values(saved_.size());
    for (auto* list : {&gone_, &in_part_})
      for (auto& [i, layout] : *list) {
        if (!backward.reads[i]) values[i] = layout.nothing();
        TORCH_CHECK(list != &gone_ || !backward.reads[i], torch::autograd::ERR_BACKWARD_TWICE);
      }
    return values;
  }

  // Gives the saved values to a run, which lets go of each as soon as it can.
  void lend_saved(Run& run, const variable_list& given, const Program& backward) {
    std::lock_guard<std::mutex> lock(mutex_);
    Way way = walk(given);
    std::vector<at::Tensor> values = unread(backward);
    auto hooked = hooked_.begin();
    for (size_t i = 0; i < saved_.size(); ++i) {
      bool own = hooked != hooked_.end() && hooked->first == i;
      if (!values[i].defined()) {
        values[i] = saved_[i].unpack(getptr());
        if (own) values[i] = hooked->second.conform(std::move(values[i]), "what a saved tensor's hook gave back");
      }
      if (own) ++hooked;
    }
    leave(way);
    bool frees = way.frees && !way.classes.empty() && !all_freed_ && !program_->uses.empty() && program_->narrow;
    const std::vector<bool> over_now = frees ? over() : std::vector<bool>();
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (frees && is_over(program_->uses[i], over_now) &&
          std::none_of(gone_.begin(), gone_.end(), [i](auto& g) { return g.first == i; })) {
        gone_.emplace_back(i, Layout(values[i]));
        saved_[i].reset_data();
      }
      run.own_input((int)i, std::move(values[i]));
    }
    if (all_freed_) forget();
  }

  // The gradients as results of differentiable operators, by the Python function that the program names.
  variable_list replay(variable_list&& given, bool foreign) {
    const GradProgram& p = *program_;
    TORCH_CHECK_NOT_IMPLEMENTED(p.second, "jit: the gradients of ", p.name, " cannot be differentiated again");
    std::vector<at::Tensor> saved, inputs;
    c10::SmallVector<size_t, 4> changed;  // inputs that were written since; behind them saved values that are not given
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Way way = walk(given);
      TORCH_CHECK(!forgotten_ && gone_.empty(), torch::autograd::ERR_BACKWARD_TWICE);
      saved.resize(saved_.size());
      for (auto& [i, layout] : in_part_) {
        bool read = p.saved[i].kind == GradProgram::kInput;
        for (size_t t = 0; t < given.size(); ++t) read |= p.uses[i][t] && given[t].defined();
        if (read) continue;
        saved[i] = layout.nothing();
        changed.push_back(p.found.size() + i);
      }
      for (size_t i = 0; i < saved_.size(); ++i)
        if (!saved[i].defined()) saved[i] = saved_[i].unpack(getptr());
      for (auto& [i, layout] : hooked_)
        saved[i] = layout.conform(std::move(saved[i]), "what a saved tensor's hook gave back");
      for (size_t i = 0; i < p.found.size(); ++i) {
        at::Tensor t;
        if (p.found[i] >= 0) {
          t = saved[p.found[i]];
        } else {
          const Kept& k = kept_[-1 - p.found[i]];
          t = k.tensor;
          if (!t.is_inference() && t.unsafeGetTensorImpl()->version_counter().current_version() != k.version)
            changed.push_back(i);
        }
        int32_t w = p.wrt_of[i];
        if (w >= 0 && !t.requires_grad() && next_edge(w).is_valid()) {
          t = t.tensor_data();
          torch::autograd::impl::set_gradient_edge(t, next_edge(w));
        }
        inputs.push_back(std::move(t));
      }
      leave(way);
      if (all_freed_) forget();
    }
    pybind11::gil_scoped_acquire gil;
    auto failed = [] {
      python_error e;
      e.persist();
      throw e;
    };
    auto tuple_of = [&](size_t n, auto item) {
      Ref tuple = Ref::steal(PyTuple_New((Py_ssize_t)n));
      if (!tuple) failed();
      for (size_t i = 0; i < n; ++i) {
        PyObject* o = item(i);
        if (!o) failed();
        PyTuple_SET_ITEM(tuple.get(), (Py_ssize_t)i, o);
      }
      return tuple;
    };
    auto tensors = [&](const std::vector<at::Tensor>& list) {  // None for an undefined one
      return tuple_of(list.size(), [&](size_t i) { return THPVariable_Wrap(list[i]); });
    };
    if (!foreign)
      for (size_t i = 0; i < given.size(); ++i)
        if (given[i].defined()) given[i] = tangents_[i].conform_recorded(given[i], "a gradient");
    Ref in = tensors(inputs), kept = tensors(saved), tangents = tensors(given);
    Ref ints = tuple_of(arguments_.size(), [&](size_t i) { return PyLong_FromLongLong(arguments_[i]); });
    Ref wanted = tuple_of(p.wrt.size(), [&](size_t k) { return PyBool_FromLong(task_should_compute_output(k)); });
    Ref stale = tuple_of(changed.size(), [&](size_t i) { return PyLong_FromSize_t(changed[i]); });
    PyObject* arguments[] = {
        in.get(), kept.get(), ints.get(), tangents.get(), wanted.get(), stale.get(), foreign ? Py_True : Py_False};
    Ref out = Ref::steal(PyObject_Vectorcall(p.second, arguments, 7, nullptr));
    if (!out) failed();
    TORCH_CHECK(PyTuple_Check(out.get()) && (size_t)PyTuple_GET_SIZE(out.get()) == p.wrt.size(),
                "jit: the second derivative of ", p.name, " has to be a tuple with ", p.wrt.size(), " gradients");
    variable_list gradients;
    for (size_t k = 0; k < p.wrt.size(); ++k) {
      PyObject* o = PyTuple_GET_ITEM(out.get(), (Py_ssize_t)k);
      TORCH_CHECK(o == Py_None || THPVariable_Check(o), "jit: the second derivative of ", p.name, " gave a ",
                  Py_TYPE(o)->tp_name, " as a gradient");
      at::Tensor t = o == Py_None ? at::Tensor() : THPVariable_Unpack(o);
      gradients.push_back(t.defined() && t.requires_grad() && !c10::GradMode::is_enabled() ? t.detach() : t);
    }
    return gradients;
  }

  std::shared_ptr<const GradProgram> program_;
  c10::SmallVector<SavedVariable, 2> saved_;
  c10::SmallVector<Layout, 1> tangents_;
  c10::SmallVector<int64_t, 4> ints_;
  c10::SmallVector<int64_t, 1> arguments_;
  std::vector<Kept> kept_;
  std::vector<Watched> watched_;
  std::vector<std::pair<size_t, Layout>> hooked_;
  std::atomic<bool> releasing_ = false;
  bool forgotten_ = false, walked_ = false, all_freed_ = false;
  std::vector<bool> freed_;                         // per class of `keeps`
  std::vector<std::pair<size_t, Layout>> gone_;     // saved values that were given up before the others
  std::vector<std::pair<size_t, Layout>> in_part_;  // those that only some tangents' gradients read
};

// The node of a call whose steps have run; the outputs with a tangent get it for their history.
auto record(const Call& call, const std::shared_ptr<const GradProgram>& gradient, c10::ArrayRef<at::Tensor> outputs) {
  const GradProgram& g = *gradient;
  torch::autograd::edge_list next;
  next.reserve(g.wrt.size());
  for (int32_t i : g.wrt) {
    const at::Tensor& t = call.input(i);
    next.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
  }
  auto node = make_node<CompiledNode>(gradient, std::move(next));
  for (int32_t i : g.tangents) {
    const at::Tensor& t = outputs[i];
    TORCH_CHECK(t.defined(), "jit: output ", i, " of ", g.name, " is None and has a gradient");
    uint32_t number = node->add_input_metadata(t);
    node->tangent(t);
    if (!t.requires_grad()) torch::autograd::impl::set_gradient_edge(t, {node, number});
  }
  return node;
}

// What the backward needs. Comes after the history and the views of the outputs.
void save(CompiledNode& node, Call& call, const GradProgram& g, c10::ArrayRef<at::Tensor> outputs) {
  for (const GradProgram::Int& i : g.ints) {
    if (i.input < 0) node.integer(call.ints[i.dim]);
    else node.integer(i.stride ? call.input(i.input).stride(i.dim) : call.input(i.input).size(i.dim));
  }
  for (auto [kind, index] : g.saved) {
    if (kind == GradProgram::kInput) {
      node.save(call.input(index), false);
    } else if (kind == GradProgram::kExtra) {
      node.save(call.run.plain_result(g.slot(kind, index)), false);
    } else if (!outputs[index].defined()) {
      node.save(call.input(g.slot(kind, index)), false);
    } else {
      // Of a result that is not the node's own an alias: the result may come to hold the node.
      bool own = std::find(g.tangents.begin(), g.tangents.end(), index) != g.tangents.end();
      node.save(own ? outputs[index] : outputs[index].tensor_data(), own);
    }
  }
  for (const auto& w : g.watched)
    node.watch(w.kind == GradProgram::kOutput && outputs[w.index].defined()
                   ? outputs[w.index]
                   : call.input(w.kind == GradProgram::kInput ? w.index : g.slot(w.kind, w.index)),
               w.writes);
  for (int32_t i : g.kept) node.keep(call.input(i), g.wrt_of[i] >= 0);
  if (g.second)
    for (int32_t i = 0; i < call.program->n_ints; ++i) node.argument(call.ints[i]);
}

at::Tensor view_of(const at::Tensor& base, const GradProgram::View& v, const Run& run) {
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (int32_t r : v.sizes) sizes.push_back(run.reg(r));
  for (int32_t r : v.strides) strides.push_back(run.reg(r));
  return at::as_strided(base, sizes, strides, base.storage_offset() + run.reg(v.offset));
}

// Comes after the run, which may have written the memory: autograd refuses to look for the history of such a view anew.
void mark_several(const at::Tensor& view) {
  auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (!meta || !c10::GradMode::is_enabled()) return;
  meta->set_creation_meta(torch::autograd::CreationMeta::MULTI_OUTPUT_NODE);
  meta->set_attr_version(torch::autograd::impl::version_counter(view).current_version());
}

PyObject* py_differentiable(PyObject*, PyObject* args) {
  PyObject *forward, *backward, *spec;
  if (!PyArg_ParseTuple(args, "OOO:differentiable", &forward, &backward, &spec)) return nullptr;
  HANDLE_TH_ERRORS
  try {
    if (!plan_check(forward) || !plan_check(backward))
      raise(PyExc_TypeError, "differentiable takes two loaded plans and a GradSpec");
    auto *f = reinterpret_cast<PlanObject*>(forward), *b = reinterpret_cast<PlanObject*>(backward);
    if (b->bound) raise(PyExc_ValueError, "the backward plan has bound inputs");
    Ref derivative = Ref::steal(checked(PyTuple_Pack(2, b->data ? b->data : Py_None, spec)));
    return plan_with_gradient(f, differentiable_call, parse_gradient(f->program, b->program, spec), derivative.get());
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"differentiable", Entry<py_differentiable>::call, METH_VARARGS,
     "differentiable(forward plan, backward plan, GradSpec) -> a plan that returns the forward's first n_outputs "
     "results, with a history where autograd records."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

static PyObject* run_differentiable(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  try {
    auto* self = reinterpret_cast<PlanObject*>(object);
    std::shared_ptr<const GradProgram> gradient = self->gradient;
    const GradProgram& g = *gradient;
    Call call(self);
    if (!call.take(args, nargsf, names)) return nullptr;
    const auto& slots = call.program->outputs;
    c10::SmallVector<at::Tensor, 8> outputs(g.n_outputs);
    decltype(record(call, gradient, outputs)) node;
    Ref result;
    auto is_recorded = [&] {
      bool recorded = false;
      if (c10::GradMode::is_enabled() && !g.tangents.empty())
        for (int32_t i : g.wrt) recorded |= call.input(i).requires_grad();
      return recorded;
    };
    // A hook for saved tensors may do anything with them, on any stream.
    bool hooked = call.program->graphs && at::SavedTensorDefaultHooks::get_hooks().has_value();
    size_t n_public = hooked ? slots.size() : (size_t)g.n_outputs;
    // The node that is made gets the next number, by which profilers find the forward of a backward.
    PlanRange range(*call.program, call.run,
                    [&] { return is_recorded() ? (int64_t)at::sequence_number::peek() : (int64_t)-1; });
    execute(*call.program, call.run, /*gil_held=*/true, n_public, [&] {
      bool recorded = is_recorded();
      for (int32_t i = 0; i < g.n_outputs; ++i)
        if (slots[i] >= call.program->n_inputs) outputs[i] = call.run.result(slots[i]);
      if (recorded) node = record(call, gradient, outputs);
      for (const auto& v : g.views) {
        const at::Tensor& base = v.kind == GradProgram::kOutput && outputs[v.base].defined()
                                     ? outputs[v.base]
                                     : call.input(v.kind == GradProgram::kInput ? v.base : slots[v.base]);
        outputs[v.output] = view_of(base, v, call.run);
      }
      result = Ref::steal(checked(PyTuple_New(g.n_outputs)));
      for (int32_t i = 0; i < g.n_outputs; ++i)
        PyTuple_SET_ITEM(
            result.get(), i,
            checked(outputs[i].defined() || slots[i] >= call.program->n_inputs ? THPVariable_Wrap(outputs[i])
                                                                               : Py_NewRef(call.inputs[slots[i]])));
    });
    for (const auto& v : g.views)
      if (v.several) mark_several(outputs[v.output]);
    // Values and versions are saved as they are after the run. Hooks that the program has set for saved tensors see
    // them, and may raise. That is the program's own error, which it gets: a hook that has seen a tensor is not shown
    // it again (activation checkpoints end what they do again by such an error).
    if (node) {
      try {
        save(*node, call, g, outputs);
      } catch (...) {
        call.run.failed(/*committing=*/true);
        throw;
      }
    }
    return result.release();
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyObject* differentiable_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* result = run_differentiable(object, args, nargsf, names);
  if (!result) tie_failure();
  return result;
}

bool init_autograd(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
