// Dispatch tables as JSON: the class of a call, a table's document, and whether a table is of this installation.
#pragma once

#include <string>
#include <vector>

#include "engine/json_parts.h"
#include "pipeline/selector.h"
#include "table/table.h"

namespace lz {

// What all calls of the request's class have in common, by variable: {"s_q": [129, 512], "query.dtype": "bfloat16",
// "s_q % 16 == 0": true}; null is no limit. Call it inside a Reclaimer::Guard, with current facts.
Json ClassOfCall(const BoundCall& call);
// What the dispatch table in force was for a selection; null: there is none.
Json TableJson(const SelectionReport& report, const TableInForce* table);

// A document (docs/design/0037-tables.md) as a table. kConfig, with `what` as the field: it is none, or names an
// operation, a variable or a value that this build does not have.
Result<table::Content> ReadTableDocument(const Registry& registry, const std::string& text, const std::string& what);
// The document of a table; values of operations that this build does not have are numbers.
Json TableDocument(const Registry& registry, const table::Content& content);

// What a table says of the installation that it is for, and what is true here.
struct TableDifference {
  std::string field, wanted, got;
};
// {"hardware_signature", "capabilities_hash", "versions", "policy_hash", "policy", "tp_size"} of a device here.
Json TableIdentity(Selector& selector, const Device& device, const Policy& policy);
std::vector<TableDifference> CompareIdentities(const Json& about, const Json& here);
// "cpu_avx512-bf16_...", "cuda_sm90_cu130_nvidia-h100-...".
std::string HardwareSignature(const Device& device);

}  // namespace lz
