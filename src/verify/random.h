// Random calls of any operation, drawn from its contract only, as lines of the .cases grammar: the line that a test
// prints reproduces it.
//   RandomCalls calls(op, seed);
//   std::string line = calls.Valid();   // refused and large calls are drawn again; empty: none was found
//   std::string broken = calls.Broken();  // must be refused by binding, with an error on a parameter
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/case.h"
#include "verify/generator.h"

namespace lz::verify {

class LZ_VERIFY_API RandomCalls {
 public:
  RandomCalls(const Operation& op, uint64_t seed) : op_(op), generator_(seed) {}

  std::string Valid();   // empty: none was found
  std::string Broken();  // empty: nothing in this call can certainly be broken

 private:
  // Every piece of a call is a function of its own seed, so that one piece can be drawn again without changing
  // the others.
  struct Piece {
    uint64_t seed = 0;
    uint64_t values = 0;  // tensors: seed of their elements and strides
    int64_t size = -1;    // axes: the size that an error wanted; -1: drawn
    bool absent = false;  // tensors and scalars
  };
  struct Draft {
    std::vector<Piece> axes, tensors, scalars;
    Piece leading, layout;
    std::vector<int64_t> variables;  // variables of expressions: axes, then integer scalars
    std::vector<int64_t> lead;       // sizes of "..."
  };
  enum class Fault : uint8_t { kNone, kMissing, kDType, kRank, kSize };

  Draft NewDraft();
  Draft Varied(Draft draft);
  bool Find(Draft& draft);           // finds a draft that Settle accepts
  void Resolve(Draft& draft) const;  // computes sizes from seeds
  std::string Text(const Draft& draft, int broken = -1, Fault fault = Fault::kNone) const;
  std::string TensorText(const Draft& draft, size_t i, Fault fault) const;
  std::string OptionsText(const Draft& draft) const;  // scalars and layout
  Result<Case> ToBind(const Draft& draft) const;      // without elements
  std::vector<int64_t> StoredShape(const Draft& draft, size_t i, Fault fault) const;
  std::vector<int64_t> ShapeOf(const Draft& draft, size_t i) const;
  std::vector<int64_t> AnyShape(const Draft& draft, size_t i) const;
  std::string FillText(const Draft& draft, std::string_view name, Generator& g, DType type, int64_t numel) const;
  std::string ScalarText(size_t i, const Piece& piece) const;
  DType DTypeOf(const Draft& draft, size_t i) const;
  bool Shares(const Draft& draft, size_t i) const;  // its first axis is bound by another tensor too
  bool AcceptsValues(const std::string& line) const;
  bool Settle(Draft& draft);  // draws again what is too large or refused
  void Shrink(Draft& draft);
  bool GiveWanted(Draft& draft, const ErrorParts& error);
  void Redraw(Draft& draft, std::string_view field);

  const Operation& op_;
  Generator generator_;
  std::optional<Draft> found_;  // the last draft: it is varied before a new one is drawn, since most of its pieces
                                // still fit
};

}  // namespace lz::verify
