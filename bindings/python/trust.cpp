#include "trust.h"

#include <string>

#include "base/signature.h"
#include "base/trusted_file.h"
#include "call.h"
#include "policy/trust.h"

namespace lz::python {
namespace {

PyObject* NoneOr(const Status& status) {
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

PyObject* ReadTrustedPath(PyObject*, PyObject* args) {
  const char *path, *what;
  if (!PyArg_ParseTuple(args, "ss", &path, &what)) return nullptr;
  const auto bytes = ReadTrusted(path, what);
  return bytes.ok() ? PyBytes_FromStringAndSize(bytes->data(), Py_ssize_t(bytes->size())) : Raise(bytes.status());
}

PyObject* CheckSignedBytes(PyObject*, PyObject* args) {
  const char *path, *bytes, *role;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "sy#s", &path, &bytes, &size, &role)) return nullptr;
  const std::optional<FileKind> kind = FileKindFromName(role);
  if (!kind) return PyErr_Format(PyExc_ValueError, "wanted plugin, descriptor, records or table, got %s", role);
  const auto policy = Engine::Get().PolicyInForce();
  return NoneOr(policy ? CheckSigned(*policy, *kind, path, {bytes, size_t(size)}) : Status());
}

PyObject* VerifySignedBytes(PyObject*, PyObject* args) {
  const char *path, *bytes;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "sy#", &path, &bytes, &size)) return nullptr;
  const auto policy = Engine::Get().PolicyInForce();
  const auto key = VerifySigned(policy ? *policy : Policy(), path, {bytes, size_t(size)});
  return key.ok() ? PyUnicode_FromString(key->c_str()) : Raise(key.status());
}

PyObject* CheckTrustedPath(PyObject*, PyObject* args) {
  const char* path;
  if (!PyArg_ParseTuple(args, "s", &path)) return nullptr;
  return NoneOr(CheckTrusted(path));
}

PyObject* SignBytes(PyObject*, PyObject* args) {
  const char *bytes, *pem, *what;
  Py_ssize_t size, pem_size;
  if (!PyArg_ParseTuple(args, "y#y#s", &bytes, &size, &pem, &pem_size, &what)) return nullptr;
  const auto text = Sign({bytes, size_t(size)}, {pem, size_t(pem_size)}, what);
  return text.ok() ? PyUnicode_FromStringAndSize(text->data(), Py_ssize_t(text->size())) : Raise(text.status());
}

PyObject* NewKey(PyObject*, PyObject*) {
  const KeyPair pair = NewKeyPair();
  return Py_BuildValue("ss", pair.pem.c_str(), pair.public_key.c_str());
}

}  // namespace

PyMethodDef kTrustMethods[] = {
    {"read_trusted", ReadTrustedPath, METH_VARARGS,
     "read_trusted(path, what): the bytes, if no other user can change them."},
    {"check_signed", CheckSignedBytes, METH_VARARGS,
     "check_signed(path, bytes, role): raises if the policy requires a signature that is missing."},
    {"verify_signed", VerifySignedBytes, METH_VARARGS, "verify_signed(path, bytes): the trusted key that signed them."},
    {"check_trusted", CheckTrustedPath, METH_VARARGS, "check_trusted(path): raises if another user can write it."},
    {"sign", SignBytes, METH_VARARGS, "sign(bytes, private key, its name): the text of a signature file."},
    {"new_key", NewKey, METH_NOARGS, "new_key(): (private key in PEM, public key)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
