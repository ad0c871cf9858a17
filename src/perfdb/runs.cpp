#include "perfdb/runs.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "perfdb/key.h"

namespace lz::perfdb {
namespace {

struct Run {
  bool loaded = true;  // every kernel in the loaded version
  bool usual = true;   // the environment
  bool own = false;    // this very GPU
  std::string latest;
  std::vector<Record> records;

  auto rank() const { return std::tie(loaded, usual, own, latest); }
};

}  // namespace

std::vector<Record> InForce(std::vector<Record> records, const Here& here) {
  std::map<std::pair<std::string, std::string>, std::map<std::string, Run>> runs;
  for (Record& record : records) {
    if (!record.valid || record.protocol != kProtocol || IsExpired(record, here.now)) continue;
    if (!here.driver.empty() && record.driver_version && *record.driver_version != here.driver) continue;
    Run& run = runs[{record.operation, record.device_id}][RunOf(record)];
    run.loaded = run.loaded && here.is_loaded(record);
    run.usual = !IsUnusualEnvironment(record);
    run.own = record.device_uuid && std::ranges::find(here.uuids, *record.device_uuid) != here.uuids.end();
    run.latest = std::max(run.latest, record.measured_at);
    run.records.push_back(std::move(record));
  }
  std::vector<Record> kept;
  for (auto& [what, of] : runs) {
    auto best = std::ranges::max_element(of, {}, [](const auto& one) { return one.second.rank(); });
    std::ranges::move(best->second.records, std::back_inserter(kept));
  }
  // Of a kernel's builds the latest comes last: it is the one that is used.
  std::ranges::stable_sort(kept, {}, &Record::measured_at);
  return kept;
}

}  // namespace lz::perfdb
