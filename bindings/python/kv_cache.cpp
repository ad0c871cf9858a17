#include "kv_cache.h"

#include <string>
#include <vector>

#include "call.h"
#include "layerzero/kv_abi.h"

namespace lz::python {
namespace {

constexpr const char* kCapsule = "layerzero.kv_cache";

const lz_api& Api() {
  static const lz_api* const api = lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api));
  return *api;
}
const lz_kv_api& Kv() { return *Api().kv; }

PyObject* RaiseLast() {
  const lz_error& e = *Api().last_error();
  return Raise(Status(StatusCode(e.code), {.field = e.field, .wanted = e.wanted, .got = e.got, .fix = e.fix}));
}

int ToCache(PyObject* object, void* out) {
  *static_cast<lz_kv_cache**>(out) = static_cast<lz_kv_cache*>(PyCapsule_GetPointer(object, kCapsule));
  return *static_cast<lz_kv_cache**>(out) != nullptr;
}
template <class T>
int ToNumbers(PyObject* object, void* out) {  // a list or tuple of integers; None: empty
  auto& numbers = *static_cast<std::vector<T>*>(out);
  if (object == Py_None) return 1;
  PyObject* items = PySequence_Tuple(object);
  if (!items) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(items) && !PyErr_Occurred(); ++i) {
    const long long number = PyLong_AsLongLong(PyTuple_GetItem(items, i));
    if (number != static_cast<long long>(T(number)) && !PyErr_Occurred()) {
      PyErr_Format(PyExc_OverflowError, "wanted numbers of %d bits, got %lld", int(8 * sizeof(T)), number);
    }
    numbers.push_back(T(number));
  }
  Py_DecRef(items);
  return !PyErr_Occurred();
}
const int32_t* Data(const std::vector<int32_t>& tokens) { return tokens.empty() ? nullptr : tokens.data(); }

// Checks that tokens are given for all positions or for none.
bool CountsTokens(const std::vector<int32_t>& tokens, long long num_tokens) {
  if (tokens.empty() || static_cast<long long>(tokens.size()) == num_tokens) return true;
  Raise(Status(StatusCode::kInvalidRequest, {.field = "KVCacheManager: tokens",
                                             .wanted = "none or " + std::to_string(num_tokens),
                                             .got = std::to_string(tokens.size())}));
  return false;
}

// A buffer that Python's array libraries read without a copy.
template <class T>
PyObject* Bytes(const std::vector<T>& numbers) {
  return PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                       Py_ssize_t(numbers.size() * sizeof(T)));
}

PyObject* Create(PyObject*, PyObject* args) {
  int strategy, sharing;
  long long blocks, size;
  if (!PyArg_ParseTuple(args, "iLLp", &strategy, &blocks, &size, &sharing)) return nullptr;
  const lz_kv_config config{sizeof(config), strategy, blocks, size, sharing, 0};
  lz_kv_cache* cache = nullptr;
  if (Kv().create(&config, &cache) != LZ_OK) return RaiseLast();
  return PyCapsule_New(cache, kCapsule, [](PyObject* capsule) {
    Kv().destroy(static_cast<lz_kv_cache*>(PyCapsule_GetPointer(capsule, kCapsule)));
  });
}

PyObject* Allocate(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  long long id, n;
  std::vector<int32_t> tokens;
  unsigned long long salt;
  if (!PyArg_ParseTuple(args, "O&LLO&K", ToCache, &cache, &id, &n, ToNumbers<int32_t>, &tokens, &salt)) return nullptr;
  uint64_t handle = 0;
  int64_t cached = 0;
  if (!CountsTokens(tokens, n)) return nullptr;
  if (Kv().allocate(cache, id, n, Data(tokens), salt, &handle, &cached) != LZ_OK) return RaiseLast();
  return Py_BuildValue("KL", static_cast<unsigned long long>(handle), static_cast<long long>(cached));
}

PyObject* Append(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  long long n;
  std::vector<int32_t> tokens;
  if (!PyArg_ParseTuple(args, "O&KLO&", ToCache, &cache, &handle, &n, ToNumbers<int32_t>, &tokens)) return nullptr;
  lz_kv_copy copy{};
  if (!CountsTokens(tokens, n)) return nullptr;
  if (Kv().append(cache, handle, n, Data(tokens), &copy) != LZ_OK) return RaiseLast();
  return Py_BuildValue("ii", copy.from, copy.to);
}

PyObject* Fork(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long parent;
  long long id;
  if (!PyArg_ParseTuple(args, "O&KL", ToCache, &cache, &parent, &id)) return nullptr;
  uint64_t handle = 0;
  lz_kv_copy copy{};
  if (Kv().fork(cache, parent, id, &handle, &copy) != LZ_OK) return RaiseLast();
  return Py_BuildValue("Kii", static_cast<unsigned long long>(handle), copy.from, copy.to);
}

PyObject* NoneOr(int32_t code) {
  if (code != LZ_OK) return RaiseLast();
  Py_RETURN_NONE;
}
PyObject* Commit(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  if (!PyArg_ParseTuple(args, "O&K", ToCache, &cache, &handle)) return nullptr;
  return NoneOr(Kv().commit(cache, handle));
}
PyObject* Release(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  if (!PyArg_ParseTuple(args, "O&K", ToCache, &cache, &handle)) return nullptr;
  return NoneOr(Kv().release(cache, handle));
}
PyObject* Truncate(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  long long n;
  if (!PyArg_ParseTuple(args, "O&KL", ToCache, &cache, &handle, &n)) return nullptr;
  return NoneOr(Kv().truncate(cache, handle, n));
}
PyObject* ForgetPrefixes(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  if (!PyArg_ParseTuple(args, "O&", ToCache, &cache)) return nullptr;
  Kv().forget_prefixes(cache);
  Py_RETURN_NONE;
}

PyObject* Length(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  if (!PyArg_ParseTuple(args, "O&K", ToCache, &cache, &handle)) return nullptr;
  int64_t length = 0;
  return Kv().length(cache, handle, &length) == LZ_OK ? PyLong_FromLongLong(length) : RaiseLast();
}
PyObject* Slots(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  unsigned long long handle;
  long long begin, end;
  if (!PyArg_ParseTuple(args, "O&KLL", ToCache, &cache, &handle, &begin, &end)) return nullptr;
  int64_t length = 0;
  if (Kv().length(cache, handle, &length) != LZ_OK) return RaiseLast();
  std::vector<int64_t> slots(begin >= 0 && begin <= end && end <= length ? size_t(end - begin) : 0);
  return Kv().slots(cache, handle, begin, end, slots.data()) == LZ_OK ? Bytes(slots) : RaiseLast();
}

PyObject* BlockTables(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  std::vector<uint64_t> handles;
  if (!PyArg_ParseTuple(args, "O&O&", ToCache, &cache, ToNumbers<uint64_t>, &handles)) return nullptr;
  int64_t longest = 0, total = 0;
  if (Kv().measure(cache, handles.data(), handles.size(), &longest, &total) != LZ_OK) return RaiseLast();
  std::vector<int32_t> tables(handles.size() * size_t(longest)), lens(handles.size());
  const int32_t code = Kv().block_tables(cache, handles.data(), handles.size(), longest, tables.data(), lens.data());
  if (code != LZ_OK) return RaiseLast();
  return Py_BuildValue("LNN", static_cast<long long>(longest), Bytes(tables), Bytes(lens));
}
PyObject* PageLists(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  std::vector<uint64_t> handles;
  if (!PyArg_ParseTuple(args, "O&O&", ToCache, &cache, ToNumbers<uint64_t>, &handles)) return nullptr;
  int64_t longest = 0, total = 0;
  if (Kv().measure(cache, handles.data(), handles.size(), &longest, &total) != LZ_OK) return RaiseLast();
  std::vector<int32_t> indptr(handles.size() + 1), indices(static_cast<size_t>(total)), last(handles.size());
  const int32_t code =
      Kv().page_lists(cache, handles.data(), handles.size(), total, indptr.data(), indices.data(), last.data());
  if (code != LZ_OK) return RaiseLast();
  return Py_BuildValue("NNN", Bytes(indptr), Bytes(indices), Bytes(last));
}

PyObject* IsGraphCompatible(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  if (!PyArg_ParseTuple(args, "O&", ToCache, &cache)) return nullptr;
  return PyBool_FromLong(Kv().is_cuda_graph_compatible(cache));
}
PyObject* GetStats(PyObject*, PyObject* args) {
  lz_kv_cache* cache;
  if (!PyArg_ParseTuple(args, "O&", ToCache, &cache)) return nullptr;
  lz_kv_stats s{};
  s.size = sizeof(s);
  Kv().stats(cache, &s);
  const auto number = [](int64_t n) { return static_cast<long long>(n); };
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "num_blocks", number(s.num_blocks), "num_free",
                       number(s.num_free), "num_idle", number(s.num_idle), "num_sequences", number(s.num_sequences),
                       "num_evictions", number(s.num_evictions), "num_cached_tokens", number(s.num_cached_tokens),
                       "num_allocated_tokens", number(s.num_allocated_tokens));
}

}  // namespace

PyMethodDef kKvMethods[] = {
    {"kv_create", Create, METH_VARARGS, "kv_create(strategy, num_blocks, block_size, prefix_sharing): a cache."},
    {"kv_allocate", Allocate, METH_VARARGS, "kv_allocate(cache, seq_id, n, tokens, salt): (handle, cached tokens)"},
    {"kv_append", Append, METH_VARARGS, "kv_append(cache, handle, n, tokens): (from, to), the block to copy, or -1s"},
    {"kv_fork", Fork, METH_VARARGS, "kv_fork(cache, parent, seq_id): (handle, from, to)"},
    {"kv_commit", Commit, METH_VARARGS, "kv_commit(cache, handle)"},
    {"kv_release", Release, METH_VARARGS, "kv_release(cache, handle)"},
    {"kv_truncate", Truncate, METH_VARARGS, "kv_truncate(cache, handle, n)"},
    {"kv_forget_prefixes", ForgetPrefixes, METH_VARARGS, "kv_forget_prefixes(cache)"},
    {"kv_length", Length, METH_VARARGS, "kv_length(cache, handle)"},
    {"kv_slots", Slots, METH_VARARGS, "kv_slots(cache, handle, begin, end): int64 as bytes"},
    {"kv_block_tables", BlockTables, METH_VARARGS, "kv_block_tables(cache, handles): (width, int32, int32)"},
    {"kv_page_lists", PageLists, METH_VARARGS, "kv_page_lists(cache, handles): three times int32 as bytes"},
    {"kv_is_graph_compatible", IsGraphCompatible, METH_VARARGS, "kv_is_graph_compatible(cache)"},
    {"kv_stats", GetStats, METH_VARARGS, "kv_stats(cache): dict"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
