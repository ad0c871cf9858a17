// The C ABI over the engine: converts requests from and to plain structs and keeps errors for the calling thread.
#include "layerzero/c_abi.h"

#include <algorithm>
#include <deque>
#include <new>
#include <string>
#include <vector>

#include "engine/c_abi_parts.h"
#include "engine/call.h"
#include "pipeline/request_memory.h"

// The handle of an operation is the engine's Operation, that of a plan its Plan: both are valid for the life of
// the process.
struct lz_op;
struct lz_plan;
struct lz_site {
  lz::InlineCache cache;
};

namespace lz {
namespace {

struct LastError {
  ErrorParts parts;
  std::string text;
  lz_error error{};
};
thread_local LastError t_error;
thread_local std::string t_text;

const Operation* AsOperation(const lz_op* op) { return reinterpret_cast<const Operation*>(op); }
const Plan* AsPlan(const lz_plan* plan) { return reinterpret_cast<const Plan*>(plan); }

void Read(const lz_request* c, Request* r) {
  std::copy_n(c->tensors, r->op->num_inputs(), r->tensors.begin());
  std::copy_n(c->scalars, r->op->num_scalars(), r->scalars.begin());
  r->flags = c->flags;
  r->policy = c->policy;
  r->stream = c->stream;
  r->workspace = c->workspace;
  r->workspace_bytes = c->workspace_bytes;
  r->parallel = c->parallel;
}

// Binds the caller's output tensors.
Status BindGivenOutputs(const lz_request* c, Request* r) {
  const Operation& op = *r->op;
  for (size_t o = 0; o < op.num_outputs(); ++o) {
    const OutputShape& wanted = r->outputs[o];
    if (wanted.ndim < 0) {
      r->tensors[op.num_inputs() + o] = AbsentTensor();
      continue;
    }
    const lz_tensor& given = c->tensors[op.num_inputs() + o];
    const bool fits = given.ndim == wanted.ndim && DTypeOf(given) == wanted.dtype &&
                      given.device.type == r->where.type && given.device.id == r->where.id &&
                      std::equal(given.shape, given.shape + given.ndim, wanted.shape);
    const auto refuse = [&](std::string what, std::string got, std::string fix) {
      return Status(StatusCode::kInvalidRequest,
                    {.field = std::string(op.name()) + ": " + std::string(op.contract().outputs[o].name),
                     .wanted = std::move(what),
                     .got = std::move(got),
                     .fix = std::move(fix)});
    };
    if (!fits) {
      return refuse("the shape, dtype and device that output_shapes returns", "another tensor",
                    "allocate the output by output_shapes");
    }
    if (!IsDense(given)) return refuse("a contiguous tensor", "other strides", "");
    BindOutput(*r, o, static_cast<char*>(given.data) + given.byte_offset);
  }
  return {};
}

Status NoRequest() {
  return Status(StatusCode::kInvalidRequest, {.field = "request", .wanted = "a request of this ABI with an operation"});
}

// Calls `body` with the bound request. Kernels get the shapes and strides of outputs without data, which is all that a
// workspace function may read.
template <class Body>
int32_t WithRequest(const lz_request* c, Body body) {
  if (!c || c->size < sizeof(lz_request) || !c->op) return KeepError(NoRequest());
  Request r(*AsOperation(c->op));
  Read(c, &r);
  Status status = Engine::Get().Bind(r);
  for (size_t o = 0; status.ok() && o < r.op->num_outputs(); ++o) {
    if (r.outputs[o].ndim >= 0) BindOutput(r, o, nullptr);
  }
  if (status.ok()) status = body(r);
  return KeepError(status);
}

const lz_error* LastErrorOf() { return &t_error.error; }

int32_t Missing(const char* what) {
  return KeepError(Status(StatusCode::kInvalidRequest, {.field = what, .wanted = "a text", .got = "NULL"}));
}

int32_t Find(const char* name, const lz_op** op) {
  if (!name) return Missing("operation");
  Engine& engine = Engine::Get();
  if (Status wrong = engine.startup(); !wrong.ok()) return KeepError(wrong);
  const Operation* found = engine.Find(name);
  *op = reinterpret_cast<const lz_op*>(found);
  if (found) return LZ_OK;
  return KeepError(
      Status(StatusCode::kUnknownName, {.field = "operation", .wanted = "a name that contracts() lists", .got = name}));
}

int32_t OutputShapes(const lz_request* request, lz_tensor* outputs, uint64_t num_outputs) {
  return WithRequest(request, [&](Request& r) {
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

int32_t SiteSelect(lz_site* site, const lz_request* request, const lz_plan** plan) {
  return WithRequest(request, [&](Request& r) {
    Engine& engine = Engine::Get();
    const Plan* found = site && r.capture == 0 ? engine.Lookup(site->cache, r.facts) : nullptr;
    if (!found) {
      auto selected = site ? engine.Select(r, site->cache) : engine.Select(r);
      if (!selected.ok()) return selected.TakeStatus();
      found = *selected;
    }
    *plan = reinterpret_cast<const lz_plan*>(found);
    return Status();
  });
}
int32_t Select(const lz_request* request, const lz_plan** plan) { return SiteSelect(nullptr, request, plan); }

uint64_t WorkspaceOf(const lz_plan* plan, const lz_request* request) {
  uint64_t bytes = 0;
  (void)WithRequest(request, [&](Request& r) {
    bytes = WorkspaceBytes(*AsPlan(plan), r);
    return Status();
  });
  return bytes;
}

struct CCaller : Caller {
  const lz_request* c;
  Status BindMemory(const KernelEntry&, const Transforms&, Request& r) { return BindGivenOutputs(c, &r); }
};

int32_t SiteRun(lz_site* site, const lz_request* c) {
  if (!c || c->size < sizeof(lz_request) || !c->op) return KeepError(NoRequest());
  Request r(*AsOperation(c->op));
  Read(c, &r);
  CCaller caller{.c = c};
  return KeepError(RunCall(Engine::Get(), r, site ? &site->cache : nullptr, caller));
}
int32_t Run(const lz_request* request) { return SiteRun(nullptr, request); }

lz_site* SiteNew() { return new (std::nothrow) lz_site; }
void SiteFree(lz_site* site) { delete site; }

const char* PlanKernelId(const lz_plan* plan) { return AsPlan(plan)->kernel->id.c_str(); }

int32_t Explain(const lz_request* request, const char* device, const char** json) {
  if (!request || request->size < sizeof(lz_request) || !request->op) {
    return KeepError(NoRequest());
  }
  Request r(*AsOperation(request->op));
  Read(request, &r);
  auto text = Engine::Get().Explain(r, device ? device : "");
  if (!text.ok()) return KeepError(text.status());
  t_text = std::move(*text);
  *json = t_text.c_str();
  return LZ_OK;
}

const char* Contracts() {
  t_text = Engine::Get().Contracts();
  return t_text.c_str();
}
int32_t Configure(const char* json) { return json ? KeepError(Engine::Get().Configure(json)) : Missing("policy"); }
int32_t LoadConfig(const char* path) {
  return path ? KeepError(Engine::Get().LoadConfig(path)) : Missing("policy file");
}
int32_t LoadPlugin(const char* library, const char* descriptor) {
  if (!library || !descriptor) return Missing(library ? "descriptor" : "library");
  return KeepError(Engine::Get().LoadPlugin(library, descriptor));
}
void Invalidate() { Engine::Get().Invalidate(); }
int32_t PolicyScope(int64_t parent, const char* json, int64_t* id) {
  if (!json) return Missing("policy");
  auto scope = Engine::Get().PolicyScope(parent, json);
  if (!scope.ok()) return KeepError(scope.status());
  *id = *scope;
  return LZ_OK;
}

static_assert(LZ_INT == int(ParamKind::kInt) && LZ_CHOICE == int(ParamKind::kChoice));

// An operation's info with the texts that it refers to. The elements of deques never move.
struct OpInfo {
  std::deque<std::string> texts;
  std::vector<lz_param> tensors, scalars;
  lz_op_info info{};

  explicit OpInfo(const Operation& op) {
    const auto keep = [&](std::string_view text) { return texts.emplace_back(text).c_str(); };
    const auto param = [&](const Param& p) {
      return lz_param{keep(p.name), keep(p.choices), int32_t(p.kind), int32_t(p.optional || p.has_default)};
    };
    for (size_t i = 0; i < op.num_inputs(); ++i) tensors.push_back(param(op.input(i)));
    for (const Output& o : op.contract().outputs) {
      tensors.push_back({keep(o.name), keep(""), LZ_TENSOR, int32_t(!o.only_if.empty())});
    }
    for (size_t i = 0; i < op.num_scalars(); ++i) scalars.push_back(param(op.scalar(i)));
    info = {sizeof(lz_op_info),
            uint32_t(op.num_inputs()),
            uint32_t(op.num_outputs()),
            uint32_t(op.num_scalars()),
            keep(op.name()),
            tensors.data(),
            scalars.data()};
  }
};

const lz_op_info* OpInfoOf(const lz_op* op) {
  static const std::deque<OpInfo>* const all = [] {
    auto* made = new std::deque<OpInfo>;  // valid for the life of the process
    for (const auto& operation : Engine::Get().operations()) made->emplace_back(*operation);
    return made;
  }();
  return op ? &(*all)[AsOperation(op)->index()].info : nullptr;
}

}  // namespace

int32_t KeepError(const Status& status) {
  if (status.ok()) return LZ_OK;
  t_error.parts = status.parts();
  t_error.text = status.Text();
  t_error.error = {
      sizeof(lz_error),          int32_t(status.code()),    t_error.parts.field.c_str(), t_error.parts.wanted.c_str(),
      t_error.parts.got.c_str(), t_error.parts.fix.c_str(), t_error.text.c_str()};
  return int32_t(status.code());
}

}  // namespace lz

const lz_api* lz_get_api(uint32_t major, uint32_t size) {
  static const lz_api api = {sizeof(lz_api),  LZ_ABI_MAJOR,   lz::Engine::BuildId(), lz::Engine::Version(),
                             lz::LastErrorOf, lz::Find,       lz::OutputShapes,      lz::Select,
                             lz::WorkspaceOf, lz::Run,        lz::PlanKernelId,      lz::Explain,
                             lz::Contracts,   lz::Configure,  lz::LoadConfig,        lz::LoadPlugin,
                             lz::Invalidate,  lz::OpInfoOf,   lz::PolicyScope,       lz::SiteNew,
                             lz::SiteFree,    lz::SiteSelect, lz::SiteRun,           lz::KvApi()};
  return major == LZ_ABI_MAJOR && size <= sizeof(lz_api) ? &api : nullptr;
}
