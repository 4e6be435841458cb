// Tensors and the flat buffers that collectives send: many tensors are copied into one buffer, or out of it, at once.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

#include "common.h"

namespace jit {
namespace {

at::Tensor as_tensor(PyObject* o) {
  if (!THPVariable_Check(o)) raise(PyExc_TypeError, std::string("a tensor is needed, not ") + Py_TYPE(o)->tp_name);
  return THPVariable_Unpack(o);
}

std::vector<at::Tensor> as_tensors(PyObject* o) {
  Items items(o, "tensors");
  std::vector<at::Tensor> tensors;
  tensors.reserve(items.size);
  for (Py_ssize_t i = 0; i < items.size; ++i) tensors.push_back(as_tensor(items[i]));
  return tensors;
}

at::Tensor piece(const at::Tensor& t, int64_t offset, int64_t length) {
  return at::as_strided(t, {length}, {1}, t.storage_offset() + offset);
}

// The buffer has ``parts`` rows, each with the respective part of every tensor, one after the other.
void copy(const at::Tensor& buffer, const std::vector<at::Tensor>& tensors, int64_t parts, int64_t row, bool out) {
  pybind11::gil_scoped_release no_gil;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<at::Tensor> near, far;
  near.reserve(tensors.size() * parts);
  far.reserve(tensors.size() * parts);
  int64_t begin = 0;
  for (const at::Tensor& t : tensors) {
    int64_t n = t.numel() / parts;
    for (int64_t part = 0; n && part < parts; ++part) {
      near.push_back(piece(buffer, part * row + begin, n));
      far.push_back(piece(t, part * n, n));
    }
    begin += n;
  }
  if (near.empty()) return;
  if (out) at::_foreach_copy_(far, near);
  else at::_foreach_copy_(near, far);
}

PyObject* py_copy_pieces(PyObject*, PyObject* args) {
  PyObject *whole, *list;
  int64_t parts;
  int out;
  if (!PyArg_ParseTuple(args, "OOLp:copy_pieces", &whole, &list, &parts, &out)) return nullptr;
  at::Tensor buffer = as_tensor(whole);
  std::vector<at::Tensor> tensors = as_tensors(list);
  if (parts < 1 || !buffer.is_contiguous()) raise(PyExc_ValueError, "copy_pieces: a contiguous buffer is needed");
  int64_t row = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.is_contiguous() || t.numel() % parts)
      raise(PyExc_ValueError, "copy_pieces: contiguous tensors are needed, of a multiple of the parts' number");
    row += t.numel() / parts;
  }
  if (row * parts != buffer.numel()) raise(PyExc_ValueError, "copy_pieces: the buffer has another size");
  copy(buffer, tensors, parts, row, out);
  return Py_NewRef(Py_None);
}

PyObject* py_pieces(PyObject*, PyObject* args) {
  PyObject *whole, *list;
  if (!PyArg_ParseTuple(args, "OO:pieces", &whole, &list)) return nullptr;
  at::Tensor buffer = as_tensor(whole);
  Items items(list, "pieces");
  Ref result = Ref::steal(PyList_New(items.size));
  if (!result) return nullptr;
  for (Py_ssize_t i = 0; i < items.size; ++i) {
    Items one(items[i], "a piece"), sizes(one[0], "sizes"), strides(one[1], "strides");
    std::vector<int64_t> size, stride;
    for (Py_ssize_t d = 0; d < sizes.size; ++d) size.push_back(as_int(sizes[d], "a size"));
    for (Py_ssize_t d = 0; d < strides.size; ++d) stride.push_back(as_int(strides[d], "a stride"));
    at::Tensor t = at::as_strided(buffer, size, stride, as_int(one[2], "an offset"));
    PyList_SET_ITEM(result.get(), i, checked(THPVariable_Wrap(std::move(t))));
  }
  return result.release();
}

PyMethodDef methods[] = {
    {"copy_pieces", Entry<py_copy_pieces>::call, METH_VARARGS,
     "copy_pieces(buffer, tensors, parts, out): copies contiguous tensors of any shapes and dtypes into a flat buffer, "
     "or out of it.\n"
     "The buffer has ``parts`` rows; each holds the respective part of every tensor, one after the other. Versions of "
     "tensors stay as\n"
     "they are. Raises TypeError and ValueError where the sizes do not fit."},
    {"pieces", Entry<py_pieces>::call, METH_VARARGS,
     "pieces(buffer, [(sizes, strides, offset in elements), ...]) -> list of views of the buffer"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool init_pieces(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
