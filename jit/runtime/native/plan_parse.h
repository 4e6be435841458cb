// From the Plan dataclass to its native form, with every index checked.
#pragma once

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>
#include <map>

#include "plan_graphs.h"
#include "plan_run.h"
#include "recorded.h"

namespace jit {
namespace {

struct Parser {
  Program& p;
  std::map<std::pair<PyObject*, size_t>, std::shared_ptr<GpuKernel>> kernels_ = {};  // by records, which the plan keeps

  int32_t slot(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || i >= p.n_slots)
      raise(PyExc_ValueError, std::string(what) + ": slot " + std::to_string(i) + " is out of range");
    return (int32_t)i;
  }
  int32_t target(PyObject* o, const char* what) {
    int32_t i = slot(o, what);
    if (i < p.n_inputs)
      raise(PyExc_ValueError,
            std::string(what) + ": slot " + std::to_string(i) + " is an input and cannot be replaced");
    return i;
  }
  int32_t reg(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || (size_t)i >= p.regs.size())
      raise(PyExc_ValueError, std::string(what) + ": register " + std::to_string(i) + " is out of range");
    return (int32_t)i;
  }
  std::vector<int32_t> regs(PyObject* o, const char* what) {
    Items items(o, what);
    std::vector<int32_t> out;
    for (Py_ssize_t i = 0; i < items.size; ++i) out.push_back(reg(items[i], what));
    return out;
  }
  std::vector<int32_t> slots(PyObject* o, const char* what) {
    Items items(o, what);
    std::vector<int32_t> out;
    for (Py_ssize_t i = 0; i < items.size; ++i) out.push_back(slot(items[i], what));
    return out;
  }
  c10::Device device(PyObject* o) {
    c10::Device d = THPDevice_Check(o) ? reinterpret_cast<THPDevice*>(o)->device : c10::Device(as_text(o, "a device"));
    if (!d.is_cpu() && !d.is_cuda()) raise(PyExc_ValueError, "plans run on cpu and cuda only, not on " + d.str());
    if (d.is_cuda()) {
      p.has_cuda_alloc = true;
      if (d.has_index() && p.cuda_index < 0) p.cuda_index = d.index();
    }
    return d;
  }
  void layout(Desc& d, PyObject* dtype, PyObject* sizes, PyObject* strides) {
    if (!THPDtype_Check(dtype))
      raise(PyExc_TypeError, std::string("expected a torch.dtype, got ") + Py_TYPE(dtype)->tp_name);
    d.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    d.meta = c10::scalarTypeToTypeMeta(d.dtype);
    shape(d, sizes, strides);
  }
  void shape(Desc& d, PyObject* sizes, PyObject* strides) {
    d.sizes = regs(sizes, "sizes");
    d.strides = regs(strides, "strides");
    if (d.sizes.size() != d.strides.size()) raise(PyExc_ValueError, "sizes and strides differ in length");
  }

  Step step(PyObject* object) {
    Items t(object, "a step");
    std::string kind = as_text(t[0], "a step's kind");
    Step s{};
    if (kind == "alloc") {
      s.op = Step::kAlloc;
      s.dst = target(t[1], "alloc");
      s.desc.device = device(t[3]);
      layout(s.desc, t[2], t[4], t[5]);
      count_const_bytes(s.desc);
    } else if (kind == "arena") {
      s.op = Step::kArena;
      s.dst = target(t[1], "arena");
      s.desc.device = device(t[2]);
      s.reg = reg(t[3], "arena");
      if (p.regs[s.reg].op == Reg::kConst) p.const_bytes += p.regs[s.reg].value;
    } else if (kind == "temp") {
      s.op = Step::kTemp;
      s.dst = target(t[1], "temp");
      s.src = target(t[2], "temp");
      s.reg = reg(t[3], "temp");
      layout(s.desc, t[4], t[6], t[7]);
    } else if (kind == "call") {
      s.op = Step::kCpu;
      int64_t address = as_int(t[1], "the address of a CPU kernel");
      if (!address) raise(PyExc_ValueError, "the address of a CPU kernel is 0");
      s.function = reinterpret_cast<void (*)(void**, const int64_t*)>(address);
      hold_library(reinterpret_cast<void*>(address));
      s.slots = slots(t[2], "call");
      s.ints = regs(t[3], "call");
      s.shown = shown(t, 5);
    } else if (kind == "launch") {
      s.op = Step::kGpu;
      s.slots = slots(t[2], "launch");
      s.ints = regs(t[3], "launch");
      s.kernel = kernel(t[1], s.ints.size());
      auto grid = regs(t[4], "grid");
      if (grid.size() != 3) raise(PyExc_ValueError, "a grid has 3 registers");
      if (takes_together(*s.kernel)) raise(PyExc_ValueError, "a kernel for launches that are joined is launched alone");
      std::copy(grid.begin(), grid.end(), s.grid.begin());
      s.shown = shown(t, 6);
      p.has_gpu = true;
    } else if (kind == "launch_together") {
      s.op = Step::kGpu;
      s.slots = slots(t[2], kind.c_str());
      s.ints = regs(t[3], kind.c_str());
      s.programs = regs(t[4], kind.c_str());
      size_t n = s.programs.size();
      if (n == 0 || s.slots.size() % n || s.ints.size() % n)
        raise(PyExc_ValueError, "launches that are joined have the same number of pointers and of ints");
      s.kernel = kernel(t[1], s.ints.size() / n);
      if (!takes_together(*s.kernel)) raise(PyExc_ValueError, "a kernel is not made for launches that are joined");
      s.shown = shown(t, 6);
      p.has_gpu = true;
    } else if (kind == "aten") {
      s.op = Step::kAten;
      s.aten = operator_call(t);
      Items outs(t[4], "an operator's result slots");
      const auto& returns = s.aten->op->schema().returns();
      if (!s.aten->returns_list && (size_t)outs.size > returns.size())
        raise(PyExc_ValueError, s.aten->name + " has " + std::to_string(returns.size()) + " results, the plan wants " +
                                    std::to_string(outs.size));
      results(*s.aten, outs, t.size > 5 ? t[5] : Py_None);
      if (t.size > 6) manners(*s.aten, t[6]);
      find_product(*s.aten);
      p.has_aten = true;
    } else if (kind == "vjp") {
      s.op = Step::kVjp;
      auto wanted = slots(t[4], "the wanted slots of a vjp");
      s.aten = operator_call(t, (int64_t)wanted.size());
      s.aten->wanted = std::move(wanted);
      Items tangents(t[5], "the tangents of a vjp");
      for (Py_ssize_t i = 0; i < tangents.size; ++i)
        s.aten->tangents.push_back(tangents[i] == Py_None ? -1 : slot(tangents[i], "a tangent of a vjp"));
      Items outs(t[6], "the result slots of a vjp");
      if ((size_t)outs.size != s.aten->wanted.size())
        raise(PyExc_ValueError, "a vjp gives one result for each wanted slot");
      results(*s.aten, outs, t.size > 7 ? t[7] : Py_None);
      if (t.size > 8) manners(*s.aten, t[8]);
      p.has_aten = true;
    } else if (kind == "view") {
      s.op = Step::kView;
      s.dst = target(t[1], "view");
      s.src = slot(t[2], "view");
      shape(s.desc, t[3], t[4]);
      s.reg = reg(t[5], "view");
      p.view_root[s.dst] = p.view_root[s.src];
      p.view_owner[s.dst] = p.view_owner[s.src];
    } else if (kind == "copy") {
      s.op = Step::kCopy;
      s.dst = slot(t[1], "copy");
      s.src = slot(t[2], "copy");
      mutated(s.dst);
      p.has_aten = true;
    } else if (kind == "free") {
      s.op = Step::kFree;
      s.dst = slot(t[1], "free");
    } else if (kind == "flag") {
      s.op = Step::kFlag;
      s.dst = target(t[1], "flag");
    } else if (kind == "check") {
      s.op = Step::kCheck;
      s.dst = slot(t[1], "check");
      s.text = as_text(t[2], "an error's message");
    } else {
      raise(PyExc_ValueError, "unknown plan step '" + kind + "'");
    }
    if (s.op != Step::kView && s.op != Step::kCopy && s.op != Step::kFree && s.op != Step::kCheck && s.dst >= 0)
      own(s.dst);
    if (s.programs.empty() && (s.slots.size() > Run::kMaxPointers || s.ints.size() > Run::kMaxInts))
      raise(PyExc_ValueError, "a kernel has too many arguments");
    return s;
  }

  // What profilers call a kernel, of the field with this number.
  static std::string shown(const Items& t, Py_ssize_t field) {
    std::string name = t.size > field ? as_text(t[field], "the name of a kernel") : "";
    return name.empty() ? "jit_kernel" : name;
  }

  // A kernel that several steps launch is loaded once.
  std::shared_ptr<GpuKernel> kernel(PyObject* record, size_t n_int_regs) {
    auto& known = kernels_[{record, n_int_regs}];
    if (!known) known = parse_gpu_kernel(record, n_int_regs);
    return known;
  }

  // mm, bmm and addmm into memory of the plan's, with factors of 1.
  void find_product(AtenStep& a) {
    bool adds = a.name == "aten::addmm";
    if ((!adds && a.name != "aten::mm" && a.name != "aten::bmm") || a.args.size() != (adds ? 6u : 3u)) return;
    auto is_one = [](const AtenArg& arg) {
      return arg.kind == AtenArg::kConst && arg.constant.isScalar() && arg.constant.toScalar().equal(1);
    };
    if (adds && (!is_one(a.args[3]) || !is_one(a.args[4]))) return;
    for (size_t i : {size_t(0), size_t(1), adds ? size_t(2) : size_t(0), a.args.size() - 1})
      if (a.args[i].kind != AtenArg::kSlot) return;
    auto slot = [&](size_t i) { return a.args[i].indices[0]; };
    a.product = {slot(adds), slot(1 + adds), adds ? slot(0) : -1, slot(a.args.size() - 1)};
    a.products = std::make_unique<Products>();
    p.has_products = true;
  }

  void hold_library(void* address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return;
    for (const KernelLibrary& l : p.libraries)
      if (l.base == info.dli_fbase) return;
    if (void* handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
      p.libraries.emplace_back(handle, info.dli_fbase);
  }

  void own(int32_t slot) {
    p.view_root[slot] = -1;
    p.view_owner[slot] = slot;
  }

  void mutated(int32_t slot) {
    int32_t root = p.view_root[slot];
    if (root >= 0 && std::find(p.mutates.begin(), p.mutates.end(), root) == p.mutates.end()) p.mutates.push_back(root);
  }

  void count_const_bytes(const Desc& d) {
    int64_t n = (int64_t)d.meta.itemsize();
    for (int32_t r : d.sizes) n *= p.regs[r].op == Reg::kConst ? p.regs[r].value : 1;
    p.const_bytes += n;
  }

  std::unique_ptr<AtenStep> operator_call(const Items& t, int64_t n_wanted = 0) {
    auto a = std::make_unique<AtenStep>();
    a->name = as_text(t[1], "an operator's name");
    std::string overload = as_text(t[2], "an operator's overload");
    define_recorded(a->name, overload);
    a->op = c10::Dispatcher::singleton().findSchema({a->name, overload});
    if (!a->op) raise(PyExc_ValueError, "torch has no operator " + a->name + (overload.empty() ? "" : "." + overload));
    const auto& schema = a->op->schema();
    Items args(t[3], "an operator's arguments");
    if ((size_t)args.size != schema.arguments().size())
      raise(PyExc_ValueError, a->name + " takes " + std::to_string(schema.arguments().size()) +
                                  " arguments, the plan gives " + std::to_string(args.size));
    auto check_slot = [this](int64_t i) {
      if (i < 0 || i >= p.n_slots) raise(PyExc_ValueError, "an operator's argument: slot out of range");
    };
    auto check_reg = [this](int64_t i) {
      if (i < 0 || (size_t)i >= p.regs.size()) raise(PyExc_ValueError, "an operator's argument: register out of range");
    };
    for (Py_ssize_t i = 0; i < args.size; ++i)
      a->args.push_back(parse_aten_arg(args[i], schema.arguments()[i], check_slot, check_reg, n_wanted));
    const auto& returns = schema.returns();
    a->returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
    return a;
  }

  void results(AtenStep& a, const Items& outs, PyObject* layouts) {
    for (Py_ssize_t i = 0; i < outs.size; ++i) {
      a.outs.push_back(outs[i] == Py_None ? -1 : target(outs[i], "an operator's result"));
      if (a.outs.back() >= 0) own(a.outs.back());
    }
    if (layouts != Py_None) {
      Items expect(layouts, "an operator's expected layouts");
      for (Py_ssize_t i = 0; i < expect.size; ++i) {
        AtenStep::Expect e;
        if (expect[i] != Py_None) {
          Items pair(expect[i], "an expected layout");
          e.given = true;
          e.sizes = regs(pair[0], "expected sizes");
          e.strides = regs(pair[1], "expected strides");
          if (pair.size > 2) {
            if (!THPDtype_Check(pair[2])) raise(PyExc_TypeError, "an expected dtype has to be a torch.dtype");
            e.dtype = reinterpret_cast<THPDtype*>(pair[2])->scalar_type;
          }
          if (e.sizes.size() != e.strides.size())
            raise(PyExc_ValueError, "expected sizes and strides differ in length");
        }
        a.expect.push_back(std::move(e));
      }
    }
  }

  void manners(AtenStep& a, PyObject* object) {
    Items words(object, "an operator's manners");
    for (Py_ssize_t i = 0; i < words.size; ++i) {
      std::string word = as_text(words[i], "a manner of an operator");
      if (word == "draws") a.draws = true;
      else if (word == "once") a.once = true;
      else if (word == "apart") a.apart = true;
      else if (word == "waits") a.waits = true;
      else raise(PyExc_ValueError, "unknown manner of an operator '" + word + "'");
    }
  }

  // What writes to the caller's tensors comes last, where nothing raises any more.
  void check_commit() {
    for (size_t i = p.commit; i < p.steps.size(); ++i) {
      Step::Op op = p.steps[i].op;
      if (op != Step::kCpu && op != Step::kGpu && op != Step::kCopy && op != Step::kFree)
        raise(PyExc_ValueError, "step " + std::to_string(i) + " comes after the commit and may raise");
    }
  }

  // Fills in ``deaths`` and ``reads``.
  void find_deaths() {
    std::vector<int32_t> last(p.n_inputs, 0), reads;
    p.reads.assign(p.n_inputs, false);
    for (size_t i = 0; i < p.steps.size(); ++i) {
      const Step& s = p.steps[i];
      reads = s.slots;
      reads.push_back(s.src);
      if (s.op == Step::kCopy) reads.push_back(s.dst);
      if (s.aten) {
        for (const AtenArg& arg : s.aten->args) arg.read_slots(reads);
        reads.insert(reads.end(), s.aten->wanted.begin(), s.aten->wanted.end());
        reads.insert(reads.end(), s.aten->tangents.begin(), s.aten->tangents.end());
      }
      for (int32_t slot : reads)
        if (slot >= 0 && slot < p.n_inputs) last[slot] = (int32_t)i, p.reads[slot] = true;
    }
    // An output on the memory of an input is made from the input.
    for (int32_t slot : p.outputs)
      if (int32_t root = p.view_root[slot]; root >= 0) last[root] = -1, p.reads[root] = true;
    for (int32_t i = 0; i < p.n_inputs; ++i)
      if (last[i] >= 0) p.deaths.emplace_back(last[i], i);
    std::sort(p.deaths.begin(), p.deaths.end());
  }
};

std::shared_ptr<const Program> parse(PyObject* plan) {
  auto program = std::make_shared<Program>();
  Program& p = *program;
  auto get = [&](const char* name) { return Ref::steal(checked(PyObject_GetAttrString(plan, name))); };
  p.n_inputs = (int32_t)as_int(get("n_inputs").get(), "n_inputs");
  p.n_ints = (int32_t)as_int(get("n_ints").get(), "n_ints");
  p.n_slots = (int32_t)as_int(get("n_slots").get(), "n_slots");
  if (p.n_inputs < 0 || p.n_ints < 0 || p.n_slots < p.n_inputs)
    raise(PyExc_ValueError, "a plan needs n_slots >= n_inputs >= 0 and n_ints >= 0");
  p.regs = parse_regs(get("regs").get(), p.n_inputs, p.n_ints);
  for (size_t i = 0; i < p.regs.size(); ++i) {
    p.reg_values.push_back(p.regs[i].value);
    if (p.regs[i].op != Reg::kConst) p.computed.push_back((int32_t)i);
  }
  p.view_root.assign(p.n_slots, -1);
  for (int i = 0; i < p.n_slots; ++i) p.view_owner.push_back(i);
  for (int i = 0; i < p.n_inputs; ++i) p.view_root[i] = i;
  Parser parser{p};
  Ref records = get("records");
  Items parts(records.get(), "records");
  for (Py_ssize_t i = 0; i < 2; ++i) {
    Items list(parts[i], "steps");
    p.commit = p.steps.size();
    for (Py_ssize_t k = 0; k < list.size; ++k) p.steps.push_back(parser.step(list[k]));
  }
  parser.check_commit();
  p.outputs = parser.slots(get("outputs").get(), "outputs");
  Ref aligned = get("aligned");
  if (aligned.get() == Py_None) {
    for (int32_t i = 0; i < p.n_inputs; ++i) p.aligned.push_back(i);
  } else {
    p.aligned = parser.slots(aligned.get(), "aligned");
    for (int32_t i : p.aligned)
      if (i >= p.n_inputs) raise(PyExc_ValueError, "aligned names inputs only");
  }
  Ref mutates = get("mutates");
  Items changed(mutates.get(), "mutates");
  for (Py_ssize_t i = 0; i < changed.size; ++i) {
    int32_t s = parser.slot(changed[i], "mutates");
    if (s >= p.n_inputs) raise(PyExc_ValueError, "mutates names inputs only");
    parser.mutated(s);
  }
  for (int32_t i = 0; i < p.n_slots; ++i) {
    int32_t owner = p.view_owner[i];
    if (owner == i || std::find(p.outputs.begin(), p.outputs.end(), owner) == p.outputs.end()) p.view_owner[i] = -1;
  }
  parser.find_deaths();
  p.shown = as_text(get("name").get(), "the name of a plan");
  if (p.shown.empty()) p.shown = "jit plan";
  p.shown_replay = "replay of " + p.shown;
  Ref graphs = get("graphs");
  const char* recorded = PyUnicode_Check(graphs.get()) ? PyUnicode_AsUTF8(graphs.get()) : nullptr;
  std::string when = recorded ? recorded : "";
  if (when != "always" && when != "waiting" && when != "never")
    raise(PyExc_ValueError, "graphs is always, waiting or never");
  if (when == "always" || (when == "waiting" && launches_much(p)))
    p.graphs = std::make_shared<Graphs>(p, /*measured=*/when == "waiting");
  return program;
}

}  // namespace
}  // namespace jit
