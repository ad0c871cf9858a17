// The KV cache manager: what each call does, what it refuses, and random sequences of calls against a plain model.
#include "kvcache/manager.h"

#include <gmock/gmock.h>

#include <numeric>

#include "model.h"

namespace lz::kvcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Manager> Make(Config config) {
  auto made = Manager::Make(config);
  EXPECT_TRUE(made.ok()) << made.status().Text();
  return std::move(*made);
}
std::unique_ptr<Manager> Paged(int64_t num_blocks, int64_t block_size, bool sharing = true) {
  return Make({Strategy::kPaged, num_blocks, block_size, sharing});
}
std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
std::vector<int64_t> SlotsOf(const Manager& m, Handle handle) {
  std::vector<int64_t> slots(size_t(*m.Length(handle)));
  EXPECT_TRUE(m.Slots(handle, 0, int64_t(slots.size()), slots).ok());
  return slots;
}

TEST(Manager, StrategiesThatAreNotManagedAreRefusedWithTheReason) {
  for (Strategy strategy : {Strategy::kVirtual, Strategy::kUnified}) {
    const auto made = Manager::Make({strategy, 4, 4});
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.status().Text(), HasSubstr("KV_STRATEGY_UNSUPPORTED"));
    EXPECT_THAT(made.status().Text(), HasSubstr("kv_cache_strategy: wanted contiguous or paged"));
  }
  EXPECT_FALSE(Manager::Make({Strategy(7), 4, 4}).ok());
}

TEST(Manager, SizesAreChecked) {
  EXPECT_THAT(Manager::Make({Strategy::kPaged, 0, 4}).status().Text(), HasSubstr("num_blocks: wanted 1 to"));
  EXPECT_THAT(Manager::Make({Strategy::kPaged, 4, 0}).status().Text(), HasSubstr("block_size: wanted 1 to"));
  EXPECT_THAT(Manager::Make({Strategy::kPaged, int64_t{1} << 40, 4}).status().Text(), HasSubstr("num_blocks"));
  EXPECT_THAT(Manager::Make({Strategy::kContiguous, 4, 4, true}).status().Text(), HasSubstr("prefix_sharing"));
}

TEST(Manager, AllocatesBlocksInOrderAndNamesSlots) {
  auto m = Paged(4, 2);
  const auto a = m->Allocate(1, 3, {}, 0);
  ASSERT_TRUE(a.ok());
  EXPECT_THAT(SlotsOf(*m, a->handle), ElementsAre(0, 1, 2));
  ASSERT_TRUE(m->Append(a->handle, 2, {}).ok());
  EXPECT_THAT(SlotsOf(*m, a->handle), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(m->GetStats().num_free, 1);
}

TEST(Manager, AFullCacheSaysSoAndChangesNothing) {
  auto m = Paged(2, 2);
  const auto a = m->Allocate(1, 2, {}, 0);
  ASSERT_TRUE(a.ok());
  const auto b = m->Allocate(2, 5, {}, 0);
  EXPECT_EQ(b.status().code(), StatusCode::kCacheFull);
  EXPECT_THAT(b.status().Text(), HasSubstr("wanted 3 more blocks, got 1 of 2"));
  EXPECT_EQ(m->Append(a->handle, 3, {}).status().code(), StatusCode::kCacheFull);
  EXPECT_EQ(m->GetStats().num_free, 1);
  EXPECT_EQ(*m->Length(a->handle), 2);
  EXPECT_TRUE(m->Append(a->handle, 2, {}).ok());
}

TEST(Manager, CommittedFullBlocksAreSharedByEqualTokens) {
  auto m = Paged(8, 4);
  const auto tokens = Tokens(0, 9);
  const auto a = m->Allocate(1, 9, tokens, 0);
  EXPECT_EQ(m->Allocate(2, 9, tokens, 0)->num_cached_tokens, 0) << "nothing is committed yet";
  ASSERT_TRUE(m->Commit(a->handle).ok());
  const auto c = m->Allocate(3, 9, tokens, 0);
  EXPECT_EQ(c->num_cached_tokens, 8);
  EXPECT_EQ(SlotsOf(*m, c->handle)[7], SlotsOf(*m, a->handle)[7]);
  EXPECT_NE(SlotsOf(*m, c->handle)[8], SlotsOf(*m, a->handle)[8]);
}

TEST(Manager, OnlyEqualPrefixesAreShared) {
  auto m = Paged(16, 2);
  ASSERT_TRUE(m->Commit(m->Allocate(1, 6, Tokens(0, 6), 0)->handle).ok());
  EXPECT_EQ(m->Allocate(2, 4, Tokens(2, 4), 0)->num_cached_tokens, 0) << "the same tokens at another place";
  EXPECT_EQ(m->Allocate(3, 6, Tokens(0, 6), 9)->num_cached_tokens, 0) << "another salt";
  EXPECT_EQ(m->Allocate(4, 6, Tokens(0, 6), 0)->num_cached_tokens, 4) << "the last token is computed";
  auto other = Tokens(0, 6);
  other[3] = 77;
  EXPECT_EQ(m->Allocate(5, 6, other, 0)->num_cached_tokens, 2);
}

TEST(Manager, FreedPrefixesStayUntilRoomIsNeededOldestFirst) {
  auto m = Paged(4, 2);
  const auto a = m->Allocate(1, 4, Tokens(0, 4), 0), b = m->Allocate(2, 4, Tokens(50, 4), 0);
  for (Handle h : {a->handle, b->handle}) ASSERT_TRUE(m->Commit(h).ok() && m->Free(h).ok());
  EXPECT_EQ(m->GetStats().num_idle, 4);
  ASSERT_TRUE(m->Free(m->Allocate(3, 2, {}, 0)->handle).ok());  // evicts the end of the older prefix
  EXPECT_EQ(m->GetStats().num_evictions, 1);
  const auto again = m->Allocate(4, 5, Tokens(0, 5), 0);
  EXPECT_EQ(again->num_cached_tokens, 2) << "its beginning is still there";
  const auto other = m->Allocate(5, 3, Tokens(50, 3), 0);
  EXPECT_EQ(other.status().code(), StatusCode::kCacheFull) << "idle blocks that are wanted do not count as room";
}

TEST(Manager, ForkSharesBlocksAndCopiesOnWrite) {
  auto m = Paged(4, 4);
  const auto a = m->Allocate(1, 6, {}, 0);
  const auto fork = m->Fork(a->handle, 2);
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(fork->second.from, -1);
  EXPECT_EQ(SlotsOf(*m, fork->first), SlotsOf(*m, a->handle));
  const auto copy = m->Append(fork->first, 1, {});
  EXPECT_EQ(copy->from, 1);
  EXPECT_EQ(copy->to, 2);
  EXPECT_EQ(m->Append(a->handle, 1, {})->from, -1) << "the other one owns it alone now";
}

TEST(Manager, WritingIntoATruncatedPublishedBlockTakesItsPrefixBack) {
  auto m = Paged(4, 4);
  const auto a = m->Allocate(1, 4, Tokens(0, 4), 0);
  ASSERT_TRUE(m->Commit(a->handle).ok() && m->Truncate(a->handle, 2).ok());
  ASSERT_TRUE(m->Append(a->handle, 2, Tokens(90, 2)).ok());
  EXPECT_EQ(m->Allocate(2, 5, Tokens(0, 5), 0)->num_cached_tokens, 0);
  ASSERT_TRUE(m->Commit(a->handle).ok());
  EXPECT_EQ(m->Allocate(3, 5, std::vector<int32_t>{0, 1, 90, 91, 5}, 0)->num_cached_tokens, 4);
}

TEST(Manager, ForgottenPrefixesAreNotShared) {
  auto m = Paged(8, 2);
  const auto a = m->Allocate(1, 4, Tokens(0, 4), 0), idle = m->Allocate(2, 2, Tokens(70, 2), 0);
  ASSERT_TRUE(m->Commit(a->handle).ok() && m->Commit(idle->handle).ok() && m->Free(idle->handle).ok());
  m->ForgetPrefixes();
  EXPECT_EQ(m->GetStats().num_idle, 0);
  ASSERT_TRUE(m->Append(a->handle, 2, Tokens(4, 2)).ok() && m->Commit(a->handle).ok());
  EXPECT_EQ(m->Allocate(3, 6, Tokens(0, 6), 0)->num_cached_tokens, 0);
  EXPECT_EQ(m->Allocate(4, 3, Tokens(70, 3), 0)->num_cached_tokens, 0);
}

TEST(Manager, ContiguousGivesEachSequenceOnePlace) {
  auto m = Make({Strategy::kContiguous, 2, 8});
  EXPECT_TRUE(m->is_cuda_graph_compatible());
  EXPECT_FALSE(Paged(2, 8)->is_cuda_graph_compatible());
  const auto a = m->Allocate(1, 0, {}, 0);
  ASSERT_TRUE(m->Append(a->handle, 8, {}).ok());
  EXPECT_EQ(SlotsOf(*m, a->handle).back(), 7);
  EXPECT_THAT(m->Append(a->handle, 1, {}).status().Text(), HasSubstr("at most 8 tokens for a sequence"));
  const auto fork = m->Fork(a->handle, 2);
  EXPECT_EQ(fork->second.from, 0);
  EXPECT_EQ(fork->second.to, 1);
  EXPECT_EQ(m->Allocate(3, 1, {}, 0).status().code(), StatusCode::kCacheFull);
}

TEST(Manager, MistakesAreNamed) {
  auto m = Paged(8, 4);
  const auto a = m->Allocate(1, 5, {}, 0);
  EXPECT_THAT(m->Allocate(1, 1, {}, 0).status().Text(), HasSubstr("seq_id: wanted one that is not in use, got 1"));
  EXPECT_THAT(m->Allocate(2, -1, {}, 0).status().Text(), HasSubstr("num_tokens: wanted at least 0"));
  EXPECT_THAT(m->Allocate(2, int64_t{1} << 40, {}, 0).status().Text(), HasSubstr("num_tokens: wanted at most"));
  EXPECT_THAT(m->Allocate(2, 3, Tokens(0, 2), 0).status().Text(), HasSubstr("tokens: wanted none or 3, got 2"));
  EXPECT_THAT(m->Append(a->handle, 1, Tokens(0, 1)).status().Text(), HasSubstr("earlier tokens"));
  EXPECT_THAT(m->Truncate(a->handle, 6).Text(), HasSubstr("num_tokens: wanted 0 to 5, got 6"));
  EXPECT_THAT(m->Free(99).Text(), HasSubstr("use a handle that allocate or fork returned"));
  std::vector<int64_t> slots(9);
  EXPECT_THAT(m->Slots(a->handle, 3, 6, slots).Text(), HasSubstr("0 <= begin <= end <= 5, got 3 and 6"));
  std::vector<int32_t> table(2), lens(1);
  const std::vector<Handle> handles{a->handle};
  EXPECT_THAT(m->BlockTables(handles, table, 1, lens).Text(), HasSubstr("room for 2 numbers"));
  EXPECT_THAT(m->PageLists(handles, table, lens, {}).Text(), HasSubstr("kv_last_page_len"));
  ASSERT_TRUE(m->Free(a->handle).ok());
  EXPECT_THAT(m->Length(a->handle).status().Text(), HasSubstr("it was freed"));
}

struct Random {
  Strategy strategy;
  int64_t num_blocks, block_size;
  bool sharing, known_tokens;
};
class ManagerProperty : public testing::TestWithParam<Random> {};

// Few token values, so that prefixes meet; few blocks, so that room runs out.
TEST_P(ManagerProperty, AgreesWithThePlainModel) {
  const Random& p = GetParam();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    auto m = Make({p.strategy, p.num_blocks, p.block_size, p.sharing});
    Model model(*m, p.known_tokens);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
    const auto draw = [&](int64_t n) {
      std::vector<int32_t> tokens(static_cast<size_t>(n));
      for (int32_t& t : tokens) t = int32_t(below(2));
      return tokens;
    };
    for (int step = 0; step < 300; ++step) {
      const auto ids = model.ids();
      const int64_t any = ids.empty() ? -1 : ids[size_t(below(int64_t(ids.size())))];
      const int64_t action = below(10);
      if (any < 0 || action < 3) {
        model.Allocate(below(12), draw(below(3 * p.block_size)), uint64_t(below(2)));
      } else if (action < 5) {
        model.Append(any, draw(below(p.block_size + 2)));
      } else if (action == 5) {
        model.Fork(any, below(12));
      } else if (action == 6) {
        model.Truncate(any, below(model.length(any) + 1));
      } else if (action < 9) {
        model.Commit(any);
      } else {
        model.Free(any);
      }
      model.Check();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ", step " << step;
    }
    for (int64_t id : model.ids()) model.Free(id);
    model.Check();
  }
}

INSTANTIATE_TEST_SUITE_P(All, ManagerProperty,
                         testing::Values(Random{Strategy::kPaged, 24, 4, true, true},
                                         Random{Strategy::kPaged, 10, 1, true, true},
                                         Random{Strategy::kPaged, 40, 3, true, false},
                                         Random{Strategy::kPaged, 12, 4, false, true},
                                         Random{Strategy::kContiguous, 6, 12, false, true}));

}  // namespace
}  // namespace lz::kvcache
