// A quick check whether anything that Python code could have changed about a set of objects has changed: hundreds of
// dictionaries in tens of microseconds. It returns only true or false; the caller finds out what changed.
#pragma once

#include <Python.h>

namespace lz::python {

// guard(same, members, tensors) -> capsule, of three lists
//   same     dictionaries that hold exactly these objects in this order, as (dictionary, values)
//   members  (dictionary, key, value or None): the key's value; None: the key is missing, or None
//   tensors  (dictionary, key, tensor): the key's tensor, the address of its elements and its dtype
// unchanged(capsule) -> bool
// Nothing is owned, because garbage collection does not see through a capsule: the caller keeps the three lists alive
// as long as it checks, so that no object's address is reused.
extern PyMethodDef kGuardMethods[];

}  // namespace lz::python
