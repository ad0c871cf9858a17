// The token cache (layerzero/tokenizers/cache.py): ids by text. A hit is one look-up by the hash that the string has; a
// miss, and a hit that is compared, is a call of tokenize.encode. The GIL guards all of it. Making a Python object may
// run the garbage collector, and so any code and other threads: no reference to an entry is kept across it.
#include <algorithm>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

#include "arguments.h"
#include "tokenizer.h"
#include "tokenizer_lists.h"

namespace lz::python {
namespace {

constexpr const char* kCapsule = "layerzero.token_cache";
constexpr int64_t kFirst = 100, kNext = 1000;  // hits of an entry that are compared at the initial and the warm-up rate
constexpr size_t kMostRules = 16;

struct Key {
  PyObject* text;  // a str, not of a subclass: hashing and comparing it runs no Python code
  uint64_t space;  // twice the number of the namespace, plus 1 with special tokens
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return (uint64_t(PyObject_Hash(key.text)) ^ key.space) * uint64_t{0x9E3779B97F4A7C15};
  }
};
struct KeyEqual {
  bool operator()(const Key& a, const Key& b) const {
    return a.space == b.space && (a.text == b.text || PyUnicode_Compare(a.text, b.text) == 0);
  }
};

struct Entry {
  Key key;
  PyObject* ids;  // a tuple
  size_t bytes;
  int64_t hits = 0;
};

// What the calls of one tokenizer and model do under one policy.
struct Rules {
  Rules() = default;
  ~Rules() {
    for (PyObject* object : {tokenizer_id, model_id, name, site.host}) Py_XDECREF(object);
  }
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  PyObject *tokenizer_id = nullptr, *model_id = nullptr;
  PyObject* name = nullptr;  // of the namespace, a str
  int64_t policy = 0;        // scope
  uint64_t generation = 0;   // of all epochs: a policy that changes advances one
  uint64_t space = 0;
  long long every[3] = {};  // of how many hits one is compared: the first, the next, all later ones; 0: none is
  EncodeSite site{};
};
using SharedRules = std::shared_ptr<const Rules>;

struct Stats {
  long long hits = 0, misses = 0, validated = 0, mismatches = 0, evicted = 0;
};

class TokenCache {
 public:
  TokenCache(size_t max_bytes, PyObject* warn) : max_bytes_(max_bytes), warn_(warn) { Py_IncRef(warn); }
  ~TokenCache() {
    Clear();
    Py_DecRef(warn_);
  }
  TokenCache(const TokenCache&) = delete;
  TokenCache& operator=(const TokenCache&) = delete;

  // The ids of texts, a list of str or one str; None for other texts and for a tokenizer without rules in force.
  // nullptr with an error.
  PyObject* Encode(PyObject* tokenizer_id, PyObject* model_id, bool specials, PyObject* texts);
  void SetRules(SharedRules rules);  // takes the place of those of the same tokenizer, model and scope
  uint64_t SpaceOf(PyObject* name) {
    const auto [space, is_new] = spaces_.try_emplace({name, 0}, next_space_);
    if (is_new) {
      Py_IncRef(name);
      ++next_space_;
    }
    return 2 * space->second;
  }
  void Clear() {
    while (!entries_.empty()) Drop(entries_.begin());
    for (const auto& [name, number] : std::exchange(spaces_, {})) Py_DecRef(name.text);
    const auto dropped = std::exchange(rules_, {});  // their ends may run any code: all is empty then
  }
  PyObject* StatsDict() const {
    return Py_BuildValue("{sLsLsLsLsLsnsn}", "hits", stats_.hits, "misses", stats_.misses, "validated",
                         stats_.validated, "mismatches", stats_.mismatches, "evicted", stats_.evicted, "bytes",
                         Py_ssize_t(bytes_), "entries", Py_ssize_t(entries_.size()));
  }

 private:
  using Entries = std::list<Entry>;  // the last used first
  struct Asked {                     // a text whose ids tokenize.encode computes
    Py_ssize_t index;
    bool is_hit;
  };

  SharedRules RulesOf(PyObject* tokenizer_id, PyObject* model_id, int64_t policy) const;
  PyObject* Find(const Rules& rules, const Key& key, bool* is_hit);
  bool Answer(const Rules& rules, const Key& key, PyObject* ids, bool was_hit);
  bool AnswerAll(const Rules& rules, bool specials, PyObject* texts, PyObject* found, const std::vector<Asked>& asked);
  PyObject* EncodeList(const Rules& rules, bool specials, PyObject* texts);
  bool Insert(const Key& key, PyObject* ids);
  void Drop(Entries::iterator entry);

  const size_t max_bytes_;
  PyObject* const warn_;  // warn(namespace, characters of the text)
  size_t bytes_ = 0;
  Entries entries_;
  std::unordered_map<Key, Entries::iterator, KeyHash, KeyEqual> by_text_;
  std::unordered_map<Key, uint64_t, KeyHash, KeyEqual> spaces_;  // by name
  uint64_t next_space_ = 0;  // no number is used again: calls in flight have old ones
  std::vector<SharedRules> rules_;
  Stats stats_;
};

bool SameText(PyObject* a, PyObject* b) { return a == b || PyUnicode_Compare(a, b) == 0; }

SharedRules TokenCache::RulesOf(PyObject* tokenizer_id, PyObject* model_id, int64_t policy) const {
  const uint64_t generation = Engine::Get().epochs().Generation();
  for (const SharedRules& rules : rules_) {
    if (rules->generation == generation && rules->policy == policy && SameText(rules->tokenizer_id, tokenizer_id) &&
        SameText(rules->model_id, model_id)) {
      return rules;
    }
  }
  return nullptr;
}

void TokenCache::SetRules(SharedRules rules) {
  const auto same = [&](const SharedRules& old) {
    return old->policy == rules->policy && SameText(old->tokenizer_id, rules->tokenizer_id) &&
           SameText(old->model_id, rules->model_id);
  };
  auto old = std::find_if(rules_.begin(), rules_.end(), same);
  if (old == rules_.end() && rules_.size() == kMostRules) old = rules_.begin();
  SharedRules dropped;  // at the end of this function, when rules_ is whole again
  if (old != rules_.end()) {
    dropped = std::move(*old);
    rules_.erase(old);
  }
  rules_.push_back(std::move(rules));
}

void TokenCache::Drop(Entries::iterator entry) {
  const Entry dropped = *entry;
  by_text_.erase(dropped.key);
  entries_.erase(entry);
  bytes_ -= dropped.bytes;
  Py_DecRef(dropped.key.text);
  Py_DecRef(dropped.ids);
}

// A list of the ids of an entry; None for a text that tokenize.encode has to answer: it is not here (`is_hit` is
// false), or its entry is to be compared.
PyObject* TokenCache::Find(const Rules& rules, const Key& key, bool* is_hit) {
  const auto found = by_text_.find(key);
  *is_hit = found != by_text_.end();
  ++(*is_hit ? stats_.hits : stats_.misses);
  if (*is_hit) {
    Entry& entry = *found->second;
    entries_.splice(entries_.begin(), entries_, found->second);
    ++entry.hits;
    const long long every = rules.every[entry.hits <= kFirst ? 0 : entry.hits <= kFirst + kNext ? 1 : 2];
    if (every == 0 || entry.hits % every != 0) {
      PyObject* const kept = entry.ids;
      Py_IncRef(kept);
      PyObject* const ids = PySequence_List(kept);
      Py_DecRef(kept);
      return ids;
    }
  }
  Py_IncRef(Py_None);
  return Py_None;
}

// Adds the entry of a text. False with an error.
bool TokenCache::Insert(const Key& key, PyObject* ids) {
  PyObject* const size_of_text = PyObject_CallMethod(key.text, "__sizeof__", nullptr);
  if (!size_of_text) return false;
  size_t bytes = PyLong_AsSize_t(size_of_text) + sizeof(Entry) + 200;
  Py_DecRef(size_of_text);
  for (Py_ssize_t i = 0; i < PyTuple_Size(ids); ++i) {
    const long id = PyLong_AsLong(PyTuple_GetItem(ids, i));
    bytes += sizeof(PyObject*) + (id > 256 ? 28 : 0);  // Python has one object for each small number
  }
  if (PyErr_Occurred()) return false;
  if (const auto old = by_text_.find(key); old != by_text_.end()) Drop(old->second);
  if (bytes > max_bytes_) return true;
  Py_IncRef(key.text);
  Py_IncRef(ids);
  entries_.push_front({key, ids, bytes});
  by_text_.emplace(key, entries_.begin());
  bytes_ += bytes;
  while (bytes_ > max_bytes_) {
    Drop(std::prev(entries_.end()));
    ++stats_.evicted;
  }
  return true;
}

// Keeps the ids of a text, or compares those of its entry with them. False with an error.
bool TokenCache::Answer(const Rules& rules, const Key& key, PyObject* ids, bool was_hit) {
  PyObject* const right = PySequence_Tuple(ids);
  if (!right) return false;
  const auto found = was_hit ? by_text_.find(key) : by_text_.end();
  bool ok = true, differs = false;
  if (found == by_text_.end()) {
    ok = Insert(key, right);
  } else {
    PyObject* const kept = found->second->ids;
    Py_IncRef(kept);
    const int same = PyObject_RichCompareBool(right, kept, Py_EQ);
    Py_DecRef(kept);
    ok = same >= 0;
    differs = same == 0;
    stats_.validated += ok;
    stats_.mismatches += differs;
  }
  Py_DecRef(right);
  if (!differs) return ok;
  if (const auto wrong = by_text_.find(key); wrong != by_text_.end()) Drop(wrong->second);
  PyObject* const warned = PyObject_CallFunction(warn_, "On", rules.name, PyUnicode_GetLength(key.text));
  Py_XDECREF(warned);
  return warned != nullptr;
}

// Puts the ids of the asked texts into the list `found`. False with an error.
bool TokenCache::AnswerAll(const Rules& rules, bool specials, PyObject* texts, PyObject* found,
                           const std::vector<Asked>& asked) {
  PyObject* const group = ListOf(asked.data(), asked.size(), [&](const Asked& one) {
    return PyUnicode_FromObject(PyList_GetItem(texts, one.index));
  });
  PyObject* const rows = group ? EncodeTexts(rules.site, group, specials, false) : nullptr;
  bool ok = rows;
  for (size_t i = 0; ok && i < asked.size(); ++i) {
    PyObject* const ids = PySequence_GetItem(rows, Py_ssize_t(i));
    const Key key{PyList_GetItem(group, Py_ssize_t(i)), rules.space + specials};
    ok = ids && Answer(rules, key, ids, asked[i].is_hit);
    if (ok) {
      PyList_SetItem(found, asked[i].index, ids);
    } else {
      Py_XDECREF(ids);
    }
  }
  Py_XDECREF(rows);
  Py_XDECREF(group);
  return ok;
}

// The ids of each str of a list that nobody else has.
PyObject* TokenCache::EncodeList(const Rules& rules, bool specials, PyObject* texts) {
  PyObject* found = PyList_New(PyList_Size(texts));
  std::vector<Asked> asked;
  for (Py_ssize_t i = 0; found && i < PyList_Size(texts); ++i) {
    PyObject* const text = PyUnicode_FromObject(PyList_GetItem(texts, i));  // of a subclass: as a str
    bool is_hit = false;
    PyObject* const ids = text ? Find(rules, {text, rules.space + specials}, &is_hit) : nullptr;
    if (ids == Py_None) asked.push_back({i, is_hit});
    Py_XDECREF(text);
    if (!ids || PyList_SetItem(found, i, ids) != 0) Py_CLEAR(found);
  }
  if (found && !asked.empty() && !AnswerAll(rules, specials, texts, found, asked)) Py_CLEAR(found);
  return found;
}

PyObject* TokenCache::Encode(PyObject* tokenizer_id, PyObject* model_id, bool specials, PyObject* texts) {
  int64_t policy = 0;
  if (!ReadPolicy(&policy)) return nullptr;
  const SharedRules rules = RulesOf(tokenizer_id, model_id, policy);
  if (!rules) Py_RETURN_NONE;
  if (PyUnicode_CheckExact(texts)) {
    bool is_hit;
    PyObject* const ids = Find(*rules, {texts, rules->space + specials}, &is_hit);
    if (ids != Py_None) return ids;
    Py_DecRef(ids);
    PyObject *const one = Py_BuildValue("[O]", texts), *const found = Py_BuildValue("[O]", Py_None);
    const bool ok = one && found && AnswerAll(*rules, specials, one, found, {{0, is_hit}});
    PyObject* const row = ok ? PySequence_GetItem(found, 0) : nullptr;
    Py_XDECREF(found);
    Py_XDECREF(one);
    return row;
  }
  const bool is_single = PyUnicode_Check(texts);
  PyObject* const own = is_single ? Py_BuildValue("[O]", texts) : PyList_GetSlice(texts, 0, PyList_Size(texts));
  if (!own) return nullptr;
  PyObject* rows = Py_None;
  bool are_texts = true;
  for (Py_ssize_t i = 0; i < PyList_Size(own); ++i) are_texts &= PyUnicode_Check(PyList_GetItem(own, i)) != 0;
  if (are_texts) {
    rows = EncodeList(*rules, specials, own);
  } else {
    Py_IncRef(rows);
  }
  Py_DecRef(own);
  if (!is_single || !rows) return rows;
  PyObject* const row = PySequence_GetItem(rows, 0);
  Py_DecRef(rows);
  return row;
}

TokenCache* ToCache(PyObject* capsule) { return static_cast<TokenCache*>(PyCapsule_GetPointer(capsule, kCapsule)); }

PyObject* Make(PyObject*, PyObject* args) {
  Py_ssize_t max_bytes;
  PyObject* warn;
  if (!PyArg_ParseTuple(args, "nO", &max_bytes, &warn)) return nullptr;
  return PyCapsule_New(new TokenCache(size_t(max_bytes), warn), kCapsule,
                       [](PyObject* capsule) { delete ToCache(capsule); });
}

// (cache, tokenizer id, model id, specials, texts)
PyObject* Encode(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5) return PyErr_Format(PyExc_TypeError, "wanted 5 arguments, got %zd", count);
  TokenCache* const cache = ToCache(args[0]);
  const int specials = cache ? PyObject_IsTrue(args[3]) : -1;
  if (specials < 0) return nullptr;
  const bool named = PyUnicode_Check(args[1]) && PyUnicode_Check(args[2]);
  if (!named || !(PyUnicode_Check(args[4]) || PyList_Check(args[4]))) Py_RETURN_NONE;
  return cache->Encode(args[1], args[2], specials == 1, args[4]);
}

// (cache, tokenizer id, model id, namespace, (first, next, later), operation, number, served, host)
PyObject* SetRules(PyObject*, PyObject* args) {
  PyObject *capsule, *tokenizer_id, *model_id, *name, *host;
  const auto rules = std::make_shared<Rules>();
  if (!PyArg_ParseTuple(args, "OUUU(LLL)O&LIO", &capsule, &tokenizer_id, &model_id, &name, &rules->every[0],
                        &rules->every[1], &rules->every[2], ToBinding, &rules->site.binding, &rules->site.number,
                        &rules->site.served, &host)) {
    return nullptr;
  }
  TokenCache* const cache = ToCache(capsule);
  if (!cache || !ReadPolicy(&rules->policy)) return nullptr;
  rules->generation = Engine::Get().epochs().Generation();
  for (PyObject* object : {tokenizer_id, model_id, host}) Py_IncRef(object);
  rules->tokenizer_id = tokenizer_id;
  rules->model_id = model_id;
  rules->site.host = host;
  rules->name = PyUnicode_FromObject(name);
  if (!rules->name) return nullptr;
  rules->space = cache->SpaceOf(rules->name);
  cache->SetRules(rules);
  Py_RETURN_NONE;
}

PyObject* StatsOf(PyObject*, PyObject* capsule) {
  TokenCache* const cache = ToCache(capsule);
  return cache ? cache->StatsDict() : nullptr;
}

PyObject* Clear(PyObject*, PyObject* capsule) {
  TokenCache* const cache = ToCache(capsule);
  if (!cache) return nullptr;
  cache->Clear();
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef kTokenCacheMethods[] = {
    {"token_cache_make", Make, METH_VARARGS, "token_cache_make(max_bytes, warn(namespace, characters)): a token cache"},
    {"token_cache_encode", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Encode)), METH_FASTCALL,
     "token_cache_encode(cache, tokenizer_id, model_id, specials, str or list of str): ids; None: no rules, other "
     "texts"},
    {"token_cache_rules", SetRules, METH_VARARGS,
     "token_cache_rules(cache, tokenizer_id, model_id, namespace, rates, operation, number, served, host)"},
    {"token_cache_stats", StatsOf, METH_O, "token_cache_stats(cache): counts, bytes, entries"},
    {"token_cache_clear", Clear, METH_O, "token_cache_clear(cache): drops all entries"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
