// Calls that give no seed: torch draws their `uniform`, as torch.rand of the tensor's device does.
#pragma once

#include "arguments.h"

namespace lz::door {

// Whether the call leaves its random numbers to be drawn: neither `seed`, `offset` nor `uniform`.
bool LeavesDraw(const OpDoor& door, const Arguments& arguments);

// The drawn tensor, which lives as long as this.
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

  // Into the arguments and the request, whose other tensors have been read. false: a Python error is set.
  bool Into(const OpDoor& door, Arguments* arguments, Request* request);

 private:
  PyObject* tensor_ = nullptr;
};

// Describes in the request the tensor that a call would draw, without drawing.
void DescribeDraw(const OpDoor& door, Request* request, Descriptions* descriptions);

}  // namespace lz::door
