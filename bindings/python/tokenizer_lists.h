// Lists of numbers for Python, for the functions on tokenizers.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenize/tokenizer.h"

namespace lz::python {

template <class T, class Make>
PyObject* ListOf(const T* items, size_t count, Make&& make) {
  PyObject* list = PyList_New(Py_ssize_t(count));
  for (size_t i = 0; list && i < count; ++i) {
    PyObject* item = make(items[i]);
    if (!item) {
      Py_DecRef(list);
      return nullptr;
    }
    PyList_SetItem(list, Py_ssize_t(i), item);
  }
  return list;
}
inline PyObject* IdObject(int32_t id) { return PyLong_FromLong(id); }
inline PyObject* SpanObject(const tokenize::Span& span) { return Py_BuildValue("ii", span.start, span.end); }
// The texts of tokenizer 0 are any bytes.
inline PyObject* TextObject(const char* utf8, size_t size) {
  return PyUnicode_DecodeUTF8(utf8, Py_ssize_t(size), "replace");
}

// The UTF-8 of a list's strings, which keep it; a string with surrogates has none. False with an error.
bool ReadTexts(PyObject* list, std::vector<std::string_view>* texts);

// encode_call(operation, number, served libraries, texts, specials, offsets, host) -> ids, or (ids, spans)
PyObject* EncodeCall(PyObject*, PyObject* args);
// decode_call(operation, number, served libraries, rows, skip_specials, host) -> texts
PyObject* DecodeCall(PyObject*, PyObject* args);

}  // namespace lz::python
