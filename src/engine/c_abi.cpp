// The C ABI over the engine: requests in and out of plain structs, errors kept for the calling thread.
#include "layerzero/c_abi.h"

#include <algorithm>
#include <string>

#include "engine/engine.h"

// An operation handle is the engine's Operation, a plan handle its Plan: both live as long as the process.
struct lz_op;
struct lz_plan;

namespace lz {
namespace {

struct LastError {
  ErrorParts parts;
  std::string text;
  lz_error error{};
};
thread_local LastError t_error;
thread_local std::string t_text;

int32_t Keep(const Status& status) {
  if (status.ok()) return LZ_OK;
  t_error.parts = status.parts();
  t_error.text = status.Text();
  t_error.error = {
      sizeof(lz_error),          int32_t(status.code()),    t_error.parts.field.c_str(), t_error.parts.wanted.c_str(),
      t_error.parts.got.c_str(), t_error.parts.fix.c_str(), t_error.text.c_str()};
  return int32_t(status.code());
}

const Operation* AsOperation(const lz_op* op) { return reinterpret_cast<const Operation*>(op); }
const Plan* AsPlan(const lz_plan* plan) { return reinterpret_cast<const Plan*>(plan); }

// Stage 1 and 2 of a C request. `outputs`: whether the caller's output tensors are set; if not, kernels see their
// shapes and strides without data, which is what a workspace function may read.
Status Take(const lz_request* c, Request* r, bool outputs) {
  const Operation& op = *r->op;
  std::copy_n(c->tensors, op.num_inputs(), r->tensors.begin());
  std::copy_n(c->scalars, op.num_scalars(), r->scalars.begin());
  r->flags = c->flags;
  r->policy = c->policy;
  r->stream = c->stream;
  r->workspace = c->workspace;
  r->workspace_bytes = c->workspace_bytes;
  r->parallel = c->parallel;
  LZ_RETURN_IF_ERROR(Engine::Get().Prepare(*r));
  for (size_t o = 0; o < op.num_outputs(); ++o) {
    const OutputShape& wanted = r->outputs[o];
    if (wanted.ndim < 0) {
      r->tensors[op.num_inputs() + o] = AbsentTensor();
      continue;
    }
    if (!outputs) {
      BindOutput(*r, o, nullptr);
      continue;
    }
    const lz_tensor& given = c->tensors[op.num_inputs() + o];
    const bool fits = given.ndim == wanted.ndim && DTypeOf(given) == wanted.dtype &&
                      std::equal(given.shape, given.shape + given.ndim, wanted.shape);
    if (!fits) {
      return Status(StatusCode::kInvalidRequest,
                    {.field = std::string(op.name()) + ": " + std::string(op.contract().outputs[o].name),
                     .wanted = "the shape and dtype that output_shapes gives",
                     .got = "another tensor",
                     .fix = "allocate the output by output_shapes"});
    }
    BindOutput(*r, o, static_cast<char*>(given.data) + given.byte_offset);
    int64_t expected = 1;
    for (int32_t d = given.ndim - 1; d >= 0; --d) {
      if (given.shape[d] != 1 && given.strides[d] != expected) {
        return Status(StatusCode::kInvalidRequest,
                      {.field = std::string(op.name()) + ": " + std::string(op.contract().outputs[o].name),
                       .wanted = "a contiguous tensor",
                       .got = "other strides"});
      }
      expected *= given.shape[d];
    }
  }
  return {};
}

template <class Body>
int32_t WithRequest(const lz_request* c, bool outputs, Body body) {
  if (!c || c->size < sizeof(lz_request) || !c->op) {
    return Keep(
        Status(StatusCode::kInvalidRequest, {.field = "request", .wanted = "a request of this ABI with an operation"}));
  }
  Request r(*AsOperation(c->op));
  Status status = Take(c, &r, outputs);
  if (status.ok()) status = body(r);
  return Keep(status);
}

const lz_error* LastErrorOf() { return &t_error.error; }

int32_t Find(const char* name, const lz_op** op) {
  Engine& engine = Engine::Get();
  if (!engine.startup().ok()) return Keep(engine.startup());
  const Operation* found = engine.Find(name);
  *op = reinterpret_cast<const lz_op*>(found);
  if (found) return LZ_OK;
  return Keep(
      Status(StatusCode::kUnknownName, {.field = "operation", .wanted = "a name that contracts() lists", .got = name}));
}

int32_t OutputShapes(const lz_request* request, lz_tensor* outputs, uint64_t num_outputs) {
  return WithRequest(request, false, [&](Request& r) {
    for (size_t o = 0; o < std::min<uint64_t>(num_outputs, r.op->num_outputs()); ++o) {
      const OutputShape& shape = r.outputs[o];
      outputs[o].ndim = shape.ndim;
      outputs[o].device = r.where;
      outputs[o].dtype = {Info(shape.dtype).dlpack_code, Info(shape.dtype).bits, Info(shape.dtype).lanes};
      for (int32_t d = 0; d < shape.ndim; ++d) outputs[o].shape[d] = shape.shape[d];
    }
    return Status();
  });
}

int32_t Select(const lz_request* request, const lz_plan** plan) {
  return WithRequest(request, false, [&](Request& r) {
    auto selected = Engine::Get().Select(r);
    if (!selected.ok()) return selected.TakeStatus();
    *plan = reinterpret_cast<const lz_plan*>(*selected);
    return Status();
  });
}

uint64_t WorkspaceOf(const lz_plan* plan, const lz_request* request) {
  uint64_t bytes = 0;
  (void)WithRequest(request, false, [&](Request& r) {
    bytes = Engine::Get().WorkspaceBytes(*AsPlan(plan), r);
    return Status();
  });
  return bytes;
}

int32_t Run(const lz_request* request) {
  return WithRequest(request, true, [&](Request& r) {
    auto plan = Engine::Get().Select(r);
    if (!plan.ok()) return plan.TakeStatus();
    return Engine::Get().Run(**plan, r);
  });
}

const char* PlanKernelId(const lz_plan* plan) { return AsPlan(plan)->kernel->id.c_str(); }

int32_t Explain(const lz_request* request, const char* device, const char** json) {
  if (!request || request->size < sizeof(lz_request) || !request->op) return LZ_INVALID_REQUEST;
  Request r(*AsOperation(request->op));
  std::copy_n(request->tensors, r.op->num_inputs(), r.tensors.begin());
  std::copy_n(request->scalars, r.op->num_scalars(), r.scalars.begin());
  r.flags = request->flags;
  r.policy = request->policy;
  auto text = Engine::Get().Explain(r, device ? device : "");
  if (!text.ok()) return Keep(text.status());
  t_text = std::move(*text);
  *json = t_text.c_str();
  return LZ_OK;
}

const char* Contracts() {
  t_text = Engine::Get().Contracts();
  return t_text.c_str();
}
int32_t Configure(const char* json) { return Keep(Engine::Get().Configure(json)); }
int32_t LoadConfig(const char* path) { return Keep(Engine::Get().LoadConfig(path)); }
int32_t LoadPlugin(const char* library, const char* descriptor) {
  return Keep(Engine::Get().LoadPlugin(library, descriptor));
}
void Invalidate() { Engine::Get().Invalidate(); }

}  // namespace
}  // namespace lz

const lz_api* lz_get_api(uint32_t major, uint32_t size) {
  static const lz_api api = {sizeof(lz_api),  LZ_ABI_MAJOR,  lz::Engine::BuildId(), lz::Engine::Version(),
                             lz::LastErrorOf, lz::Find,      lz::OutputShapes,      lz::Select,
                             lz::WorkspaceOf, lz::Run,       lz::PlanKernelId,      lz::Explain,
                             lz::Contracts,   lz::Configure, lz::LoadConfig,        lz::LoadPlugin,
                             lz::Invalidate};
  return major == LZ_ABI_MAJOR && size <= sizeof(lz_api) ? &api : nullptr;
}
