// A quick look whether anything that Python code could have changed about a set of objects has changed: hundreds of
// dictionaries in tens of microseconds. Says only whether; what it was is for the caller to find out.
#pragma once

#include <Python.h>

namespace lz::door {

// watch(same, members, tensors) -> capsule, of three lists
//   same     dictionaries that hold these very objects in this order, as (dictionary, values)
//   members  (dictionary, key, value or None): the key's value; None: it has none, or None
//   tensors  (dictionary, key, tensor): the key's tensor, where its elements lie and of which dtype
// unchanged(capsule) -> bool
// Nothing is owned, because garbage collection does not see through a capsule: the caller keeps the three lists alive
// as long as it asks, so that no object's address goes to another.
extern PyMethodDef kWatchMethods[];

}  // namespace lz::door
