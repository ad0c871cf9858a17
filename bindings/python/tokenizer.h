// The own tokenizer for Python: functions over a capsule, which layerzero/tokenizers/own.py wraps in a class.
#pragma once

#include <Python.h>

namespace lz::python {

extern PyMethodDef kTokenizerMethods[];   // ends with a null entry
extern PyMethodDef kTokenCacheMethods[];  // of token_cache.cpp, the same

}  // namespace lz::python
