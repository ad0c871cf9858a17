// What the stand-in for cuBLASLt (fake_cublaslt.cpp) did, and what it shall do next; fake_cublaslt_state() returns it.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeCublasLt {
  // What was called.
  int handles = 0, heuristics = 0, products = 0;
  int alive = 0;  // descriptors, layouts and preferences that were not destroyed
  // The last product.
  int algorithm = -1, epilogue = 0, batch = 0;
  uint32_t alignment = 0, reduction = 0;
  uint64_t most_workspace = 0, workspace_bytes = 0;
  const void* workspace = nullptr;
  const void* stream = nullptr;
  // What it shall do.
  int algorithms = 5;  // that it has for a problem; algorithm i asks for i KiB
  int create_status = 0, product_status = 0;
  int status_of_first = 0;  // of the first algorithm in the list
};
