// The KV cache manager for Python: functions over a capsule; layerzero/kv_cache.py makes a class of them.
#pragma once

#include <Python.h>

namespace lz::door {

extern PyMethodDef kKvMethods[];  // ends with a null entry

}  // namespace lz::door
