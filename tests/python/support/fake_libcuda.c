/* A libcuda.so.1 that shows FAKE_CUDA_DEVICES devices of SM 9.0, or fails in cuInit with error FAKE_CUDA_INIT. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}

int cuInit(unsigned flags) { return number("FAKE_CUDA_INIT"); }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = number("FAKE_CUDA_DEVICES"), 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int size, int device) { return strncpy(name, "NVIDIA Fake 90", size), 0; }
int cuDeviceGetUuid(char* uuid, int device) { return memset(uuid, 0x11 + device, 16), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)80 << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  /* 75: major of the compute capability, 76: minor, 16: multiprocessors; the others are limits. */
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 65535;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == 100   ? "no CUDA-capable device is detected"
          : error == 803 ? "system has unsupported display driver / cuda driver combination"
                         : "unknown error";
  return 0;
}
int cuCtxGetDevice(int* device) { return 201; /* no context */ }
int cuCtxPushCurrent_v2(void* context) { return 201; }
int cuCtxPopCurrent_v2(void** context) { return 201; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return 2; /* out of memory */ }
int cuStreamIsCapturing(void* stream, int* status) { return *status = 0, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return 201; }
int cuMemcpy(unsigned long to, unsigned long from, size_t bytes) { return 201; }
int cuStreamSynchronize(void* stream) { return number("FAKE_CUDA_SYNC"); }
