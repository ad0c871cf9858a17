// The KV cache manager for Python: functions over a capsule, which layerzero/kv_cache.py wraps in a class.
#pragma once

#include <Python.h>

namespace lz::python {

extern PyMethodDef kKvMethods[];  // ends with a null entry

}  // namespace lz::python
