// A database has measurements of several runs: other drivers, versions of torch, machines of one kind. Times of two
// runs are not compared, so one run decides for each operation and device.
#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "perfdb/record.h"

namespace lz::perfdb {

// What is here, as records name it.
struct Here {
  std::function<bool(const Record&)> is_loaded;  // its kernel was measured in the version of the library that is loaded
  std::vector<std::string> uuids;                // of the GPUs
  std::string driver;                            // of the GPUs, "580.65"; empty: unknown
  std::time_t now = 0;
};

// Keeps, of the records of each operation and device, those of the best run: one with the loaded versions before
// others, then one in the usual environment, then one of this very GPU, then the latest. Records that are not valid,
// expired, of another protocol or another driver are left out.
std::vector<Record> InForce(std::vector<Record> records, const Here& here);

}  // namespace lz::perfdb
