#include "tokenizer.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"
#include "tokenize/numbers.h"
#include "tokenizer_lists.h"

namespace lz::python {
namespace {

using tokenize::Span;
using tokenize::Tokenizer;
using Held = std::shared_ptr<const Tokenizer>;

constexpr const char* kCapsule = "layerzero.tokenizer";

PyObject* None() {
  Py_IncRef(Py_None);
  return Py_None;
}

int ToTokenizer(PyObject* object, void* out) {
  *static_cast<Held**>(out) = static_cast<Held*>(PyCapsule_GetPointer(object, kCapsule));
  return *static_cast<Held**>(out) != nullptr;
}

PyObject* Make(PyObject*, PyObject* args) {
  const char* text;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "s#", &text, &size)) return nullptr;
  PyThreadState* const saved = PyEval_SaveThread();
  auto made = Tokenizer::Make({text, size_t(size)});
  PyEval_RestoreThread(saved);
  if (!made.ok()) return Raise(made.status());
  return PyCapsule_New(new Held(std::move(*made)), kCapsule,
                       [](PyObject* capsule) { delete static_cast<Held*>(PyCapsule_GetPointer(capsule, kCapsule)); });
}

PyObject* Facts(PyObject*, PyObject* args) {
  Held* tokenizer;
  if (!PyArg_ParseTuple(args, "O&", ToTokenizer, &tokenizer)) return nullptr;
  return Py_BuildValue("nNN", Py_ssize_t((*tokenizer)->num_ids()), PyBool_FromLong((*tokenizer)->has_offsets()),
                       PyBool_FromLong((*tokenizer)->has_decoder()));
}

// encode(tokenizer, texts, specials, offsets) -> (ids, spans): None for a text that it does not serve.
PyObject* Encode(PyObject*, PyObject* args) {
  Held* held;
  PyObject* list;
  int specials, offsets;
  if (!PyArg_ParseTuple(args, "O&O!pp", ToTokenizer, &held, &PyList_Type, &list, &specials, &offsets)) return nullptr;
  std::vector<std::string_view> texts;
  if (!ReadTexts(list, &texts)) return nullptr;
  struct Row {
    size_t first, count;
    bool served;
  };
  std::vector<Row> rows;
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  const Held tokenizer = *held;
  PyThreadState* const saved = PyEval_SaveThread();
  for (const std::string_view text : texts) {
    const size_t first = ids.size();
    const bool served = text.data() && tokenizer->Encode(text, specials, &ids, offsets ? &spans : nullptr);
    rows.push_back({first, ids.size() - first, served});
  }
  PyEval_RestoreThread(saved);
  PyObject* all = ListOf(rows.data(), rows.size(), [&](const Row& row) {
    return row.served ? ListOf(ids.data() + row.first, row.count, IdObject) : None();
  });
  PyObject* places = ListOf(rows.data(), offsets && all ? rows.size() : 0, [&](const Row& row) {
    return row.served ? ListOf(spans.data() + row.first, row.count, SpanObject) : None();
  });
  if (all && places) return Py_BuildValue("NN", all, places);
  Py_XDECREF(all);
  Py_XDECREF(places);
  return nullptr;
}

// decode(tokenizer, rows of ids, skip_specials) -> texts; None for ids with which the library fails.
PyObject* Decode(PyObject*, PyObject* args) {
  Held* held;
  PyObject* list;
  int skip;
  if (!PyArg_ParseTuple(args, "O&O!p", ToTokenizer, &held, &PyList_Type, &list, &skip)) return nullptr;
  PyObject* texts = PyList_New(0);
  std::vector<int64_t> ids;
  std::string text;
  for (Py_ssize_t i = 0; texts && i < PyList_Size(list); ++i) {
    PyObject* const row = PyList_GetItem(list, i);
    ids.clear();
    text.clear();
    for (Py_ssize_t j = 0; PyList_Check(row) && j < PyList_Size(row); ++j) {
      ids.push_back(PyLong_AsLongLong(PyList_GetItem(row, j)));
    }
    const bool served = !PyErr_Occurred() && (*held)->Decode(ids, skip, &text);
    PyObject* one = PyErr_Occurred() ? nullptr : served ? TextObject(text.data(), text.size()) : None();
    if (!one || PyList_Append(texts, one) != 0) {
      Py_DecRef(texts);
      texts = nullptr;
    }
    Py_XDECREF(one);
  }
  return texts;
}

// number(tokenizer or None) -> the number by which calls of operations name it.
PyObject* Number(PyObject*, PyObject* object) {
  Held* held = nullptr;
  if (object != Py_None && !ToTokenizer(object, &held)) return nullptr;
  return PyLong_FromLongLong(tokenize::NumberOf(held ? *held : nullptr));
}

}  // namespace

bool ReadTexts(PyObject* list, std::vector<std::string_view>* texts) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    Py_ssize_t size = 0;
    PyObject* const text = PyList_GetItem(list, i);
    const char* utf8 = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
    if (!utf8 && (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "wanted a list of str");
      return false;
    }
    PyErr_Clear();
    texts->emplace_back(utf8, utf8 ? size_t(size) : 0);
  }
  return true;
}

PyMethodDef kTokenizerMethods[] = {
    {"tokenizer_make", Make, METH_VARARGS,
     "tokenizer_make(text of a tokenizer.json): the own tokenizer; raises why not"},
    {"tokenizer_facts", Facts, METH_VARARGS, "tokenizer_facts(tokenizer): (number of ids, has offsets, has a decoder)"},
    {"tokenizer_encode", Encode, METH_VARARGS, "tokenizer_encode(tokenizer, texts, specials, offsets): (ids, spans)"},
    {"tokenizer_decode", Decode, METH_VARARGS, "tokenizer_decode(tokenizer, rows, skip_specials): texts"},
    {"tokenizer_number", Number, METH_O, "tokenizer_number(tokenizer or None): its number in calls of operations"},
    {"tokenizer_encode_call", EncodeCall, METH_VARARGS,
     "tokenizer_encode_call(operation, number, served, texts, specials, offsets, host): ids, or (ids, spans)"},
    {"tokenizer_decode_call", DecodeCall, METH_VARARGS,
     "tokenizer_decode_call(operation, number, served, rows, skip_specials, host): texts"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
