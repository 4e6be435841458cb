#include "grad_program.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "plan.h"
#include "plan_object.h"

namespace jit {
namespace {

struct SpecParser {
  GradProgram& g;

  static void check(bool fine, const std::string& text) {
    if (!fine) raise(PyExc_ValueError, text);
  }

  static int32_t index(PyObject* o, size_t end, const char* what) {
    int64_t i = as_int(o, what);
    check(i >= 0 && (size_t)i < end, std::string(what) + ": " + std::to_string(i) + " is out of range");
    return (int32_t)i;
  }

  static std::vector<int32_t> indices(PyObject* o, size_t end, const char* what) {
    Items items(o, what);
    std::vector<int32_t> out;
    for (Py_ssize_t i = 0; i < items.size; ++i) out.push_back(index(items[i], end, what));
    return out;
  }

  static void distinct(std::vector<int32_t> v, const char* what) {
    std::sort(v.begin(), v.end());
    check(std::adjacent_find(v.begin(), v.end()) == v.end(), std::string(what) + " names one twice");
  }

  GradProgram::Kind kind(PyObject* o, const char* what) {
    std::string text = as_text(o, what);
    if (text == "input") return GradProgram::kInput;
    if (text == "output") return GradProgram::kOutput;
    check(text == "extra", std::string(what) + ": unknown kind '" + text + "'");
    return GradProgram::kExtra;
  }

  size_t count(GradProgram::Kind kind) const {
    return kind == GradProgram::kInput    ? g.forward->n_inputs
           : kind == GradProgram::kOutput ? g.n_outputs
                                          : g.forward->outputs.size() - g.n_outputs;
  }

  void saved(PyObject* o) {
    Items items(o, "saved");
    for (Py_ssize_t i = 0; i < items.size; ++i) {
      Items pair(items[i], "an entry of saved");
      auto k = kind(pair[0], "an entry of saved");
      g.saved.push_back({k, index(pair[1], count(k), "an entry of saved")});
    }
  }

  void ints(PyObject* o) {
    Items items(o, "symbols");
    for (Py_ssize_t i = 0; i < items.size; ++i) {
      Items e(items[i], "an entry of symbols");
      std::string text = as_text(e[0], "an entry of symbols");
      if (text == "int") {
        g.ints.push_back({-1, index(e[1], g.forward->n_ints, "an int of symbols")});
      } else {
        check(text == "size" || text == "stride", "an entry of symbols: unknown kind '" + text + "'");
        int64_t dim = as_int(e[2], "a dim of symbols");
        check(dim >= 0, "a dim of symbols is negative");
        g.ints.push_back({index(e[1], g.forward->n_inputs, "an input of symbols"), (int32_t)dim, text == "stride"});
      }
    }
  }

  void views(PyObject* o, PyObject* several) {
    Items items(o, "views");
    size_t n_regs = g.forward->regs.size();
    for (Py_ssize_t i = 0; i < items.size; ++i) {
      Items e(items[i], "a view");
      GradProgram::View v;
      v.output = index(e[0], g.n_outputs, "a view's output");
      v.kind = kind(e[1], "a view's base");
      check(v.kind != GradProgram::kExtra, "a view's base is an input or an output");
      v.base = index(e[2], count(v.kind), "a view's base");
      Items how(e[3], "how a view is made");
      v.sizes = indices(how[0], n_regs, "a view's sizes");
      v.strides = indices(how[1], n_regs, "a view's strides");
      v.offset = index(how[2], n_regs, "a view's offset");
      check(v.sizes.size() == v.strides.size(), "a view's sizes and strides differ in length");
      check(std::find(g.tangents.begin(), g.tangents.end(), v.output) == g.tangents.end(),
            "a view has a tangent of its own; autograd takes it to the base");
      check(v.kind == GradProgram::kInput || v.output != v.base, "a view is its own base");
      g.views.push_back(std::move(v));
    }
    for (int32_t k : indices(several, g.n_outputs, "one of several views")) {
      auto v = std::find_if(g.views.begin(), g.views.end(), [k](const GradProgram::View& v) { return v.output == k; });
      check(v != g.views.end(), "one of several views is no view");
      v->several = true;
    }
    for (auto& v : g.views)
      for (auto& w : g.views)
        check(v.kind == GradProgram::kInput || v.base != w.output, "the base of a view is a view");
  }

  // A set of positions as the bits of an int.
  std::vector<bool> mask(PyObject* o, size_t n, const char* what) {
    if (!PyLong_Check(o)) raise(PyExc_TypeError, std::string(what) + ": an int is needed");
    Ref length = Ref::steal(checked(PyObject_CallMethod(o, "bit_length", nullptr)));
    check((size_t)as_int(length.get(), what) <= n, std::string(what) + ": a position is out of range");
    Ref bytes = Ref::steal(checked(PyObject_CallMethod(o, "to_bytes", "ns", (Py_ssize_t)(n / 8 + 1), "little")));
    const char* data = PyBytes_AS_STRING(bytes.get());
    std::vector<bool> bits(n);
    for (size_t i = 0; i < n; ++i) bits[i] = data[i / 8] >> (i % 8) & 1;
    return bits;
  }

  void keeps(PyObject* classes, PyObject* uses) {
    if (classes == Py_None) {  // all that is saved, if there is any
      if (!g.saved.empty())
        g.keeps.push_back({std::vector<bool>(g.tangents.size(), true), std::vector<bool>(g.wrt.size(), true)});
    } else {
      Items items(classes, "keeps");
      for (Py_ssize_t i = 0; i < items.size; ++i) {
        Items pair(items[i], "an entry of keeps");
        g.keeps.push_back({mask(pair[0], g.tangents.size(), "the tangents of keeps"),
                           mask(pair[1], g.wrt.size(), "the inputs of keeps")});
      }
    }
    for (size_t t = 0; t < g.tangents.size(); ++t)
      g.open |= std::none_of(g.keeps.begin(), g.keeps.end(), [t](auto& k) { return k.tangents[t]; });
    if (uses == Py_None) return;
    Items items(uses, "uses");
    check((size_t)items.size == g.saved.size(), "uses needs one entry for each of saved");
    for (Py_ssize_t i = 0; i < items.size; ++i) g.uses.push_back(mask(items[i], g.tangents.size(), "uses"));
  }

  void watched(PyObject* o) {
    Items items(o, "watched");
    for (Py_ssize_t i = 0; i < items.size; ++i) {
      Items e(items[i], "an entry of watched");
      auto k = kind(e[0], "an entry of watched");
      check(k != GradProgram::kExtra, "what is watched is an input or an output");
      int32_t at = index(e[1], count(k), "an entry of watched");
      int32_t writes = (int32_t)as_int(e[2], "the writes of watched");
      GradProgram::Kept way = {mask(e[3], g.tangents.size(), "the tangents of watched"),
                               mask(e[4], g.wrt.size(), "the inputs of watched")};
      g.watched.push_back({k, at, writes, std::move(way)});
    }
  }

  void read(PyObject* spec) {
    auto get = [&](const char* name) { return Ref::steal(checked(PyObject_GetAttrString(spec, name))); };
    const Program &f = *g.forward, &b = *g.backward;
    int64_t n = as_int(get("n_outputs").get(), "n_outputs");
    check(n >= 0 && (size_t)n <= f.outputs.size(), "n_outputs is " + std::to_string(n) + ", the forward plan has " +
                                                       std::to_string(f.outputs.size()) + " outputs");
    g.n_outputs = (int32_t)n;
    g.wrt = indices(get("wrt").get(), f.n_inputs, "wrt");
    distinct(g.wrt, "wrt");
    g.tangents = indices(get("tangents").get(), n, "tangents");
    distinct(g.tangents, "tangents");
    for (int32_t t : g.tangents)
      check(f.view_root[f.outputs[t]] < 0,
            "output " + std::to_string(t) + " is an input or a view of one, and has a tangent");
    saved(get("saved").get());
    ints(get("symbols").get());
    check((size_t)b.n_inputs == g.saved.size() + g.tangents.size(),
          "the backward plan takes " + std::to_string(b.n_inputs) + " tensors, the data gives it " +
              std::to_string(g.saved.size()) + " saved ones and " + std::to_string(g.tangents.size()) + " tangents");
    check((size_t)b.n_ints == g.ints.size(), "the backward plan takes " + std::to_string(b.n_ints) +
                                                 " ints, the data gives it " + std::to_string(g.ints.size()));
    Ref grads = get("grads");
    Items list(grads.get(), "grads");
    check((size_t)list.size == g.wrt.size(), "grads needs one entry for each of wrt");
    for (Py_ssize_t i = 0; i < list.size; ++i)
      g.grads.push_back(list[i] == Py_None ? -1 : index(list[i], b.outputs.size(), "grads"));
    views(get("views").get(), get("several").get());
    Ref depends = get("depends");
    if (depends.get() != Py_None) {
      Items rows(depends.get(), "depends");
      check((size_t)rows.size == g.wrt.size(), "depends needs one entry for each of wrt");
      for (Py_ssize_t i = 0; i < rows.size; ++i) g.depends.push_back(indices(rows[i], g.tangents.size(), "depends"));
    }
    keeps(get("keeps").get(), get("uses").get());
    watched(get("watched").get());
    g.name = as_text(get("name").get(), "name");
    Ref second = get("second"), narrow = get("narrow");
    g.wrt_of.assign(f.n_inputs, -1);
    for (size_t k = 0; k < g.wrt.size(); ++k) g.wrt_of[g.wrt[k]] = (int32_t)k;
    for (PyObject* f : {second.get(), narrow.get()})
      if (f != Py_None && !PyCallable_Check(f)) raise(PyExc_TypeError, "second and narrow have to be callable");
    if (narrow.get() != Py_None) g.narrow = narrow.release();
    g.in_part.assign(g.saved.size(), false);
    for (size_t i = 0; g.narrow && i < g.uses.size(); ++i)
      g.in_part[i] = std::find(g.uses[i].begin(), g.uses[i].end(), false) != g.uses[i].end();
    if (second.get() == Py_None) return;
    g.second = second.release();
    for (int32_t i = 0; i < f.n_inputs; ++i) {
      auto at = std::find_if(g.saved.begin(), g.saved.end(),
                             [i](auto& s) { return s.kind == GradProgram::kInput && s.index == i; });
      g.found.push_back(at != g.saved.end() ? (int32_t)(at - g.saved.begin()) : -1 - (int32_t)g.kept.size());
      if (at == g.saved.end()) g.kept.push_back(i);
    }
  }
};

}  // namespace

GradProgram::~GradProgram() {
  if ((!second && !narrow) || !Py_IsInitialized()) return;
  // The last node may die on any thread.
  PyGILState_STATE gil = PyGILState_Ensure();
  Py_XDECREF(second);
  Py_XDECREF(narrow);
  PyGILState_Release(gil);
}

std::shared_ptr<const Program> GradProgram::narrowed(const std::vector<bool>& present) const {
  if (!narrow) return nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto at = narrowed_.find(present);
    if (at != narrowed_.end()) return at->second;
  }
  std::shared_ptr<const Program> made;
  {
    pybind11::gil_scoped_acquire gil;
    Ref mask = Ref::steal(PyTuple_New((Py_ssize_t)present.size()));
    for (size_t i = 0; mask && i < present.size(); ++i)
      PyTuple_SET_ITEM(mask.get(), (Py_ssize_t)i, PyBool_FromLong(present[i]));
    Ref plan = Ref::steal(mask ? PyObject_CallOneArg(narrow, mask.get()) : nullptr);
    if (!plan) {
      python_error e;
      e.persist();
      throw e;
    }
    if (plan.get() != Py_None) {
      TORCH_CHECK(plan_check(plan.get()), "jit: narrow of ", name, " gave a ", Py_TYPE(plan.get())->tp_name,
                  " where a loaded plan or None is needed");
      made = reinterpret_cast<PlanObject*>(plan.get())->program;
      TORCH_CHECK(made->n_inputs == backward->n_inputs && made->n_ints == backward->n_ints &&
                      made->outputs.size() == backward->outputs.size(),
                  "jit: narrow of ", name, " gave a plan with other inputs or outputs than the backward's");
    }
  }
  if (made && made->graphs) made->graphs->lend_results();
  std::lock_guard<std::mutex> lock(mutex_);
  return narrowed_[present] = made;
}

std::shared_ptr<const GradProgram> parse_gradient(std::shared_ptr<const Program> forward,
                                                  std::shared_ptr<const Program> backward, PyObject* spec) {
  auto g = std::make_shared<GradProgram>();
  g->forward = std::move(forward);
  g->backward = std::move(backward);
  if (g->backward->graphs) g->backward->graphs->lend_results();
  SpecParser{*g}.read(spec);
  return g;
}

}  // namespace jit
