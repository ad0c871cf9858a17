/* The C ABI of LayerZero, for kernels, plugins and other languages.
 *
 * Rules. Structs whose first field is `size` are append only: a reader uses the fields that `size` covers. The major
 * version changes only when a layout breaks; a plugin states the major that it was built for. Enum numbers of this file
 * are frozen. Every pointer is borrowed for the duration of the call unless its comment says otherwise.
 *
 */
#ifndef LAYERZERO_C_ABI_H_
#define LAYERZERO_C_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LZ_ABI_MAJOR 1

/* ---- tensors: the layout of DLPack's DLTensor ----------------------------------------------------------------- */

/* Device types are DLPack's: 1 = CPU, 2 = CUDA, 10 = ROCm, 14 = oneAPI. */
typedef struct lz_device {
  int32_t type;
  int32_t id;
} lz_device;

typedef struct lz_dtype {
  uint8_t code; /* DLPack's DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes;
} lz_dtype;

/* An absent optional tensor has ndim == -1 and data == NULL. `strides` (in elements) is never NULL when ndim > 0. */
typedef struct lz_tensor {
  void* data;
  lz_device device;
  int32_t ndim;
  lz_dtype dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} lz_tensor;

/* A scalar argument. The contract says whether it is `i` or `f`; booleans and choices are 0, 1, 2, ... in `i`. given
 * == 0: the caller omitted it and the contract has no default for it. */
typedef struct lz_scalar {
  union {
    int64_t i;
    double f;
  } value;
  uint64_t given;
} lz_scalar;

/* ---- what a kernel receives ------------------------------------------------------------------------------- */

/* Runs body(begin_i, end_i, context) over a partition of [begin, end) whose parts hold at least `grain` items, on the
 * host's threads, and returns when all are done. May run everything on the calling thread. */
typedef void (*lz_parallel_body)(int64_t begin, int64_t end, void* context);
typedef struct lz_parallel {
  void (*run)(void* self, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context);
  void* self;
  int32_t num_threads; /* upper bound of the parts that run at once */
} lz_parallel;

typedef struct lz_kernel_args {
  uint32_t size;
  uint32_t flags;           /* LZ_KERNEL_* */
  const lz_tensor* tensors; /* the contract's tensor parameters in order, then its outputs */
  const lz_scalar* scalars; /* the contract's scalar parameters in order */
  const int64_t* axes;      /* sizes of the contract's axes in order of first appearance */
  void* workspace;          /* 64-byte aligned, of the size that the kernel's workspace function returned */
  uint64_t workspace_bytes;
  void* stream; /* the caller's current stream; NULL on the CPU */
  const lz_parallel* parallel;
} lz_kernel_args;

/* Strict mode: where a contract says so, invalid values end in LZ_LAUNCH_INVALID_DATA, not in a documented result. */
#define LZ_KERNEL_STRICT 1u

/* The result of a launch. 1 and 2: a value inside a tensor is invalid (an offset, an index); no other kernel is
 * tried. LZ_LAUNCH_REFUSED: the kernel does not serve this call and has written nothing to any tensor or stream; the
 * reference runs instead. Any other nonzero value is a failure, and outputs may be partly written: the reference
 * then runs only if it reads nothing that the kernel writes, which excludes operations that write their inputs and
 * outputs that share memory with an input. On a CUDA device 1000 + n is the runtime's error n: of 2 (out of memory)
 * and of those after which the context is unusable the engine knows the meaning. No runtime library returns the code of
 * a refusal by chance. A launch must not throw, allocate tensors or synchronize. */
#define LZ_LAUNCH_DONE 0
#define LZ_LAUNCH_INVALID_DATA 1
#define LZ_LAUNCH_INVALID_INDEX 2
#define LZ_LAUNCH_REFUSED 0x4C5A
typedef int32_t (*lz_launch_fn)(const lz_kernel_args* args);
/* Returns the bytes of workspace for these arguments; must not read data pointers. */
typedef uint64_t (*lz_workspace_fn)(const lz_kernel_args* args);

/* ---- plugins --------------------------------------------------------------------------------------------- */

/* One entry point of a plugin. Its constraints are in the JSON descriptor next to the library, under `kernel_id`. */
typedef struct lz_plugin_kernel {
  uint32_t size;
  uint32_t version; /* raise it when timings or numerics may change */
  const char* kernel_id;
  const char* operation;
  lz_launch_fn launch;
  lz_workspace_fn workspace; /* NULL: none */
} lz_plugin_kernel;

typedef struct lz_plugin {
  uint32_t size;
  uint32_t abi_major; /* LZ_ABI_MAJOR that the plugin was built with */
  const char* name;
  const char* version;
  const lz_plugin_kernel* kernels;
  uint64_t num_kernels;
} lz_plugin;

/* The only export of a plugin library: const lz_plugin* lz_plugin_descriptor(void); */
typedef const lz_plugin* (*lz_plugin_descriptor_fn)(void);

/* ---- the engine ------------------------------------------------------------------------------------------ */

typedef struct lz_op lz_op;     /* an operation's call interface; valid for the life of the process */
typedef struct lz_plan lz_plan; /* the outcome of a selection; valid for the life of the process */
typedef struct lz_site lz_site; /* a call site cache for one operation; one thread at a time may use it */

/* The result of every call that can fail; lz_last_error() of the calling thread has the details. */
typedef enum lz_status_code {
  LZ_OK = 0,
  LZ_INVALID_REQUEST = 1, /* an argument does not fit the contract */
  LZ_WRONG_TYPE = 2,      /* an argument is of the wrong type */
  LZ_NO_KERNEL = 3,       /* every kernel was refused; the reasons are in the JSON */
  LZ_UNKNOWN_NAME = 4,
  LZ_CONFIG = 5, /* a policy file, variable or call is wrong */
  LZ_NOT_INSTALLED = 6,
  LZ_KERNEL_FAILED = 7,
  LZ_VERSION_MISMATCH = 8,
  LZ_GRAPH_UNSAFE = 9,
  LZ_HOST_KERNEL = 10, /* the plan's kernel is in the caller's language: call it there */
  LZ_INTERNAL = 11,
  LZ_CACHE_FULL = 12,     /* a KV cache has too few free blocks for the request; nothing was changed */
  LZ_KERNEL_REFUSED = 13, /* the kernel did not serve the call and wrote nothing, and no other kernel ran */
  LZ_CONTEXT_LOST = 14,   /* the device serves this process no more: only a new process helps */
  LZ_OUT_OF_MEMORY = 15,  /* no kernel that fits the free memory has answered */
  LZ_UNTRUSTED_FILE = 16  /* another user can change a file, or it lacks a signature that the policy requires */
} lz_status_code;

typedef struct lz_error {
  uint32_t size;
  int32_t code;       /* lz_status_code */
  const char* field;  /* what is wrong */
  const char* wanted; /* what was wanted */
  const char* got;    /* what was got */
  const char* fix;    /* what to do */
  const char* text;   /* the whole error in one sentence */
} lz_error;

/* A request. `tensors`: the contract's tensor parameters, then its outputs (the engine can compute their shapes: see
 * output_shapes). `scalars`: the contract's scalar parameters. */
typedef struct lz_request {
  uint32_t size;
  uint32_t flags; /* LZ_FLAG_* */
  int64_t policy; /* 0 = the process's policy; else an id from policy_scope */
  const lz_op* op;
  const lz_tensor* tensors;
  const lz_scalar* scalars;
  void* stream;
  void* workspace;
  uint64_t workspace_bytes;
  const lz_parallel* parallel; /* NULL: the engine's */
} lz_request;

#define LZ_FLAG_CAPTURING 1u     /* during a CUDA graph capture */
#define LZ_FLAG_REQUIRES_GRAD 2u /* a gradient is required */

/* The parameters and outputs of an operation, in the order of a request. */
typedef enum lz_param_kind { LZ_TENSOR = 0, LZ_INT = 1, LZ_FLOAT = 2, LZ_BOOL = 3, LZ_CHOICE = 4 } lz_param_kind;
typedef struct lz_param {
  const char* name;
  const char* choices; /* "silu|gelu": a choice is given by its position, from 0; empty for other kinds */
  int32_t kind;        /* lz_param_kind */
  int32_t optional;    /* 1: may be absent (a tensor) or not given (a scalar) */
} lz_param;

typedef struct lz_op_info {
  uint32_t size;
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t num_scalars;
  const char* name;
  const lz_param* tensors; /* num_inputs parameters, then num_outputs outputs */
  const lz_param* scalars;
} lz_op_info;

/* The engine's functions. A string returned as `const char*` is valid until the next call of the same thread. */
typedef struct lz_api {
  uint32_t size;
  uint32_t abi_major;
  const char* build_id;
  const char* version;
  const lz_error* (*last_error)(void);
  int32_t (*find)(const char* name, const lz_op** op); /* a flat name, an operation id or an alias */
  /* Shapes and dtypes of the outputs: sets ndim and dtype of `outputs` and writes through their shape pointers (room
   * for 8 each). An output that this call does not produce gets ndim -1. */
  int32_t (*output_shapes)(const lz_request* request, lz_tensor* outputs, uint64_t num_outputs);
  int32_t (*select)(const lz_request* request, const lz_plan** plan);
  uint64_t (*workspace_bytes)(const lz_plan* plan, const lz_request* request);
  int32_t (*run)(const lz_request* request); /* select and dispatch */
  const char* (*plan_kernel_id)(const lz_plan* plan);
  int32_t (*explain)(const lz_request* request, const char* device, const char** json); /* NULL: that of the tensors */
  const char* (*contracts)(void);                                                       /* all contracts as JSON */
  int32_t (*configure)(const char* json);
  int32_t (*load_config)(const char* path);
  int32_t (*load_plugin)(const char* library_path, const char* descriptor_path);
  void (*invalidate)(void); /* makes every cached plan stale */
  /* The info is valid for the life of the process. */
  const lz_op_info* (*op_info)(const lz_op* op);
  /* Creates a policy for requests that name its id: `json` on top of the policy `parent` (0: the process's). */
  int32_t (*policy_scope)(int64_t parent, const char* json, int64_t* id);
  /* A site is a call site cache: it remembers its last plan with the class of calls for which the plan holds. A call
   * of that class, also with other data, lengths or batch sizes within it, is served without a look-up; any other
   * call selects again. The plan is dropped when the policy or the set of kernels changes. */
  lz_site* (*site_new)(void);
  void (*site_free)(lz_site* site);
  int32_t (*site_select)(lz_site* site, const lz_request* request, const lz_plan** plan);
  int32_t (*site_run)(lz_site* site, const lz_request* request); /* select and dispatch */
  const struct lz_kv_api* kv;                                    /* layerzero/kv_abi.h */
} lz_api;

/* Returns NULL if `major` is not supported, else the table, of which the caller may read the first `size` bytes. */
#if defined(_WIN32)
#define LZ_EXPORT
#else
#define LZ_EXPORT __attribute__((visibility("default")))
#endif
LZ_EXPORT const lz_api* lz_get_api(uint32_t major, uint32_t size);

#ifdef __cplusplus
}
#endif

#endif /* LAYERZERO_C_ABI_H_ */
