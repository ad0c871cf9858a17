// Calls without a seed: torch draws their `uniform`, as torch.rand on the tensor's device does.
#pragma once

#include "arguments.h"

namespace lz::python {

// True if the call's random numbers must be drawn: it has neither `seed`, `offset` nor `uniform`.
bool NeedsDraw(const OpBinding& binding, const Arguments& arguments);

// The drawn tensor, which this object owns.
class Drawn {
 public:
  Drawn() = default;
  ~Drawn() {
    if (!tensor_) return;
    StopIfUnwound();
    Py_DecRef(tensor_);
  }
  Drawn(const Drawn&) = delete;
  Drawn& operator=(const Drawn&) = delete;

  // Adds it to the arguments and the request, whose other tensors have been read. Returns false with a Python
  // error set.
  bool Into(const OpBinding& binding, Arguments* arguments, Request* request);

 private:
  PyObject* tensor_ = nullptr;
};

// Describes in the request the tensor that a call would draw, without drawing.
void DescribeDraw(const OpBinding& binding, Request* request, Descriptions* descriptions);

}  // namespace lz::python
