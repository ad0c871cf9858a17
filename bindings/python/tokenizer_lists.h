// Lists of numbers for Python, for the functions on tokenizers.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "call.h"
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

constexpr unsigned kServedByOwn = 1;
// What calls of tokenize.encode of one registered tokenizer have in common.
struct EncodeSite {
  OpBinding* binding;  // of tokenize.encode
  long long number;    // the tokenizer's
  unsigned served;     // bits: bpe, tokenizers, tiktoken, sentencepiece, bpe_offsets
  PyObject* host;      // host(source, texts, specials, offsets) -> ids, or (ids, spans), by a library
};
// The ids of texts, which are a list of str: a list of lists; with offsets (ids, spans). Texts whose ids the own
// tokenizer does not have are a call of their own. nullptr with an error.
PyObject* EncodeTexts(const EncodeSite& site, PyObject* texts, bool specials, bool offsets);
int ToBinding(PyObject* callable, void* binding);  // for PyArg_ParseTuple's O&

// encode_call(operation, number, served, texts, specials, offsets, host) -> ids, or (ids, spans): EncodeTexts
PyObject* EncodeCall(PyObject*, PyObject* args);
// decode_call(operation, number, served, rows, skip_specials, host) -> texts; host(source, rows, skip_specials, 0)
PyObject* DecodeCall(PyObject*, PyObject* args);

}  // namespace lz::python
