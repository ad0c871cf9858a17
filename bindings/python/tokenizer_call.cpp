// Calls of tokenize.encode and tokenize.decode with Python's strings and lists: selection, policy, fallback and metrics
// are those of every call; kernels of libraries get the strings themselves.
#include <string>

#include "arguments.h"
#include "call.h"
#include "engine/call.h"
#include "ops/common/tokens.h"
#include "raising_caller.h"
#include "tokenize/numbers.h"
#include "tokenizer_lists.h"

namespace lz::python {
namespace {

using tokenize::Span;

constexpr lz_dtype kInt32{0, 32, 1}, kInt64{0, 64, 1};  // DLPack's codes
template <class T>
constexpr lz_dtype kTypeOf{uint8_t(sizeof(T) == 1 ? 1 : 0), uint8_t(8 * sizeof(T)), 1};

template <class T>
lz_tensor Dense(const T* data, lz_dtype dtype, int64_t* shape, int64_t* strides, int32_t ndim = 1) {
  strides[ndim - 1] = 1;
  if (ndim == 2) strides[0] = shape[1];
  lz_tensor t = AbsentTensor();
  t.data = const_cast<void*>(static_cast<const void*>(data));
  t.device = {1, 0};
  t.ndim = ndim;
  t.dtype = dtype;
  t.shape = shape;
  t.strides = strides;
  return t;
}

// A call from Python whose outputs are vectors of this call. An exception of a library's kernel stays pending.
template <class Value>
class TextCaller : public RaisingCaller {
 public:
  // `rows`: the `count` texts or ids as Python has them, for kernels of libraries: host(source, rows, specials, spans).
  TextCaller(PyObject* host, PyObject* rows, size_t count, size_t capacity, bool specials, bool spans)
      : host_(host),
        rows_(rows),
        values_(capacity),
        ends_(count),
        spans_(spans ? capacity : 0),
        specials_(specials),
        with_spans_(spans) {}
  ~TextCaller() { Py_XDECREF(result_); }

  Result<const Plan*> Select(Engine&, Request& r, InlineCache* site) { return SelectWithoutGil(r, site); }
  Status BindMemory(const KernelEntry&, const Transforms&, Request& r) {
    Py_CLEAR(result_);
    capacity_[0] = int64_t(values_.size());
    texts_[0] = int64_t(ends_.size());
    places_[0] = capacity_[0];
    const size_t first = r.op->num_inputs();
    r.tensors[first] = Dense(values_.data(), kTypeOf<Value>, capacity_, strides_[0]);
    r.tensors[first + 1] = Dense(ends_.data(), kInt64, texts_, strides_[1]);
    if (with_spans_) r.tensors[first + 2] = Dense(spans_.data(), kInt32, places_, strides_[2], 2);
    return {};
  }
  template <class Run>
  Status RunNative(const KernelEntry&, Request&, Run&& run) {
    const ReleasedGil released;
    return run();
  }
  Status RunHost(const KernelEntry& kernel, const Transforms&, Request&) {
    Py_CLEAR(result_);
    result_ = PyObject_CallFunction(host_, "sOii", kernel.source.c_str(), rows_, int(specials_), int(with_spans_));
    return result_ ? Status() : Failure(kernel);
  }
  void FellBack(const Plan&, const Plan&, const Request&, const Status&) {}  // a text that the own tokenizer refuses

  PyObject* TakeResult() { return std::exchange(result_, nullptr); }  // a library's; nullptr: a native kernel's
  const std::vector<Value>& values() const { return values_; }
  const std::vector<int64_t>& ends() const { return ends_; }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  PyObject *host_, *rows_;
  std::vector<Value> values_;
  std::vector<int64_t> ends_;
  std::vector<Span> spans_;
  bool specials_, with_spans_;
  int64_t capacity_[1] = {}, texts_[1] = {}, places_[2] = {0, 2}, strides_[3][2] = {};
  PyObject* result_ = nullptr;
};

// One text or list of ids after another.
template <class Value>
struct Pieces {
  std::vector<Value> values;
  std::vector<int64_t> starts{0};
  int64_t shape[2][1] = {}, strides[2][1] = {};

  void End() { starts.push_back(int64_t(values.size())); }
  void Set(Request* r) {
    shape[0][0] = int64_t(values.size());
    shape[1][0] = int64_t(starts.size());
    r->tensors[0] = Dense(values.data(), kTypeOf<Value>, shape[0], strides[0]);
    r->tensors[1] = Dense(starts.data(), kInt64, shape[1], strides[1]);
  }
};

struct Given {
  long long number = 0;
  int specials = 0, offsets = 0;
  unsigned served = 0;  // see EncodeSite
};

void SetScalars(Request* r, const Given& given, size_t capacity, bool has_offsets) {
  const auto set = [&](int i, int64_t value) {
    r->scalars[size_t(i)].value.i = value;
    r->scalars[size_t(i)].given = 1;
  };
  set(ops::tokens::kTokenizer, given.number);
  set(ops::tokens::kCapacity, int64_t(capacity));
  set(ops::tokens::kSpecials, given.specials);
  for (int bit = 0; bit < 4; ++bit) set(ops::tokens::kBpe + bit, given.served >> bit & 1);
  if (!has_offsets) return;
  set(ops::tokens::kReturnOffsets, given.offsets);
  set(ops::tokens::kBpeOffsets, given.served >> 4 & 1);
}

// Runs the call, again with more room if the result needed it. nullptr with an error.
template <class Value, class Use>
PyObject* Run(OpBinding& binding, Pieces<Value>& pieces, const Given& given, size_t capacity, Use&& run) {
  for (;;) {
    Request r(*binding.op);
    pieces.Set(&r);
    SetScalars(&r, given, capacity, sizeof(Value) == 1);
    if (!ReadContext(&r)) return nullptr;
    size_t needed = capacity;
    PyObject* result = run(r, &binding.site, capacity, &needed);
    if (needed <= capacity) return result;
    capacity = needed;
  }
}

// Appends the text's bytes; those of a string with surrogates are no UTF-8, which kernels of bytes refuse.
bool AppendText(PyObject* text, std::vector<char>* bytes) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size)) {
    bytes->insert(bytes->end(), utf8, utf8 + size);
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return false;
  PyErr_Clear();
  PyObject* encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
  char* data = nullptr;
  const bool ok = encoded && PyBytes_AsStringAndSize(encoded, &data, &size) == 0;
  if (ok) bytes->insert(bytes->end(), data, data + size);
  Py_XDECREF(encoded);
  return ok;
}

PyObject* IdLists(const TextCaller<int32_t>& caller, bool offsets) {
  const auto rows = [&](auto&& make, const auto& values) {
    size_t first = 0;
    return ListOf(caller.ends().data(), caller.ends().size(), [&](int64_t end) {
      PyObject* row = ListOf(values.data() + first, size_t(end) - first, make);
      first = size_t(end);
      return row;
    });
  };
  PyObject* ids = rows(IdObject, caller.values());
  PyObject* spans = ids && offsets ? rows(SpanObject, caller.spans()) : nullptr;
  if (!offsets || !ids) return ids;
  if (spans) return Py_BuildValue("NN", ids, spans);
  Py_DecRef(ids);
  return nullptr;
}

// One call, of texts whose ids the kernels that `given` names have.
PyObject* EncodeGroup(const EncodeSite& site, const Given& given, PyObject* texts) {
  Pieces<char> pieces;
  const auto count = size_t(PyList_Size(texts));
  for (size_t i = 0; i < count; ++i) {
    if (!AppendText(PyList_GetItem(texts, Py_ssize_t(i)), &pieces.values)) return nullptr;
    pieces.End();
  }
  const auto run = [&](Request& r, InlineCache* inline_cache, size_t capacity, size_t* needed) -> PyObject* {
    TextCaller<int32_t> caller(site.host, texts, count, capacity, given.specials, given.offsets);
    const Status status = RunCall(Engine::Get(), r, inline_cache, caller);
    if (!status.ok()) return Raise(status, &r);
    if (PyObject* result = caller.TakeResult()) return result;
    if (count > 0) *needed = size_t(caller.ends().back());
    return *needed > capacity ? nullptr : IdLists(caller, given.offsets);
  };
  return Run(*site.binding, pieces, given, pieces.values.size() + 16 * count, run);
}

using Indices = std::vector<Py_ssize_t>;

PyObject* Items(PyObject* list, const Indices& indices) {
  return ListOf(indices.data(), indices.size(), [&](Py_ssize_t i) {
    PyObject* item = PyList_GetItem(list, i);
    Py_IncRef(item);
    return item;
  });
}

// A list with the rows of two lists at their indices. It takes the references; nullptr with an error.
PyObject* Merged(PyObject* first, const Indices& of_first, PyObject* second, const Indices& of_second) {
  PyObject* rows = first && second ? PyList_New(Py_ssize_t(of_first.size() + of_second.size())) : nullptr;
  const auto place = [&](PyObject* list, const Indices& indices) {
    for (size_t i = 0; rows && i < indices.size(); ++i) {
      PyObject* row = PySequence_GetItem(list, Py_ssize_t(i));
      if (!row || PyList_SetItem(rows, indices[i], row) != 0) Py_CLEAR(rows);
    }
  };
  place(first, of_first);
  place(second, of_second);
  Py_XDECREF(first);
  Py_XDECREF(second);
  return rows;
}

// Two calls: the texts `mine` are those of `given`, the library answers `left`.
PyObject* EncodeDivided(const EncodeSite& site, const Given& given, const Given& by_library, PyObject* texts,
                        const Indices& mine, const Indices& left) {
  const auto part = [&](const Indices& indices, const Given& how) -> PyObject* {
    PyObject* group = Items(texts, indices);
    PyObject* rows = group ? EncodeGroup(site, how, group) : nullptr;
    Py_XDECREF(group);
    return rows;
  };
  PyObject* first = part(mine, given);
  PyObject* second = first ? part(left, by_library) : nullptr;
  if (!given.offsets || !second) return Merged(first, mine, second, left);
  const auto merged = [&](Py_ssize_t i) {
    return Merged(PySequence_GetItem(first, i), mine, PySequence_GetItem(second, i), left);
  };
  PyObject* ids = merged(0);
  PyObject* spans = ids ? merged(1) : nullptr;
  Py_DecRef(first);
  Py_DecRef(second);
  if (spans) return Py_BuildValue("NN", ids, spans);
  Py_XDECREF(ids);
  return nullptr;
}

}  // namespace

int ToBinding(PyObject* callable, void* out) {
  *static_cast<OpBinding**>(out) = BindingOf(callable);
  if (*static_cast<OpBinding**>(out)) return 1;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "wanted an operation");
  return 0;
}

PyObject* EncodeTexts(const EncodeSite& site, PyObject* texts, bool specials, bool offsets) {
  std::vector<std::string_view> utf8;
  if (!ReadTexts(texts, &utf8)) return nullptr;
  const Given given{site.number, specials, offsets, site.served};
  const Given by_library{site.number, specials, offsets, site.served & ~kServedByOwn};
  const tokenize::Tokenizer* own = site.served & kServedByOwn ? tokenize::Numbered(site.number) : nullptr;
  Indices mine, left;
  for (size_t i = 0; own && i < utf8.size(); ++i) {
    (utf8[i].data() && own->Serves(utf8[i]) ? mine : left).push_back(Py_ssize_t(i));
  }
  if (left.empty()) return EncodeGroup(site, given, texts);
  if (mine.empty()) return EncodeGroup(site, by_library, texts);
  return EncodeDivided(site, given, by_library, texts, mine, left);
}

PyObject* EncodeCall(PyObject*, PyObject* args) {
  PyObject* texts;
  EncodeSite site;
  int specials, offsets;
  if (!PyArg_ParseTuple(args, "O&LIO!ppO", ToBinding, &site.binding, &site.number, &site.served, &PyList_Type, &texts,
                        &specials, &offsets, &site.host)) {
    return nullptr;
  }
  return EncodeTexts(site, texts, specials, offsets);
}

PyObject* DecodeCall(PyObject*, PyObject* args) {
  OpBinding* binding;
  PyObject *list, *host;
  Given given;
  if (!PyArg_ParseTuple(args, "O&LIO!pO", ToBinding, &binding, &given.number, &given.served, &PyList_Type, &list,
                        &given.specials, &host)) {
    return nullptr;
  }
  Pieces<int64_t> pieces;
  const auto texts = size_t(PyList_Size(list));
  for (size_t i = 0; i < texts; ++i) {
    PyObject* const row = PyList_GetItem(list, Py_ssize_t(i));
    for (Py_ssize_t j = 0; PyList_Check(row) && j < PyList_Size(row); ++j) {
      pieces.values.push_back(PyLong_AsLongLong(PyList_GetItem(row, j)));
    }
    if (PyErr_Occurred()) return nullptr;
    pieces.End();
  }
  const auto run = [&](Request& r, InlineCache* site, size_t capacity, size_t* needed) -> PyObject* {
    TextCaller<char> caller(host, list, texts, capacity, given.specials, false);
    const Status status = RunCall(Engine::Get(), r, site, caller);
    if (!status.ok()) return Raise(status, &r);
    if (PyObject* result = caller.TakeResult()) return result;
    if (texts > 0) *needed = size_t(caller.ends().back());
    if (*needed > capacity) return nullptr;
    int64_t first = 0;
    return ListOf(caller.ends().data(), texts, [&](int64_t end) {
      PyObject* text = TextObject(caller.values().data() + first, size_t(end - first));
      first = end;
      return text;
    });
  };
  return Run(*binding, pieces, given, 8 * pieces.values.size() + 16 * texts, run);
}

}  // namespace lz::python
