// Priorities of some of a kernel's calls: which one holds, that it refuses nothing, that no cached plan crosses it.
#include "tests/pipeline/selector_testing.h"

namespace lz {
namespace {

using Preferences = SelectorTest;

constexpr auto kManyRows = std::to_array<Constraint>({{"rows", Rel::kGe, 3}});
constexpr auto kWide = std::to_array<Constraint>({{"hidden", Rel::kGt, 64}, {"rows * hidden", Rel::kMultipleOf, 10}});
constexpr auto kPreferences =
    std::to_array<Preference>({{.when = kManyRows, .priority = 5}, {.when = kWide, .priority = 100}});

TEST_F(Preferences, TheFirstPreferenceThatHoldsReplacesThePriority) {
  Register({{.id = "a.k", .priority = 90, .preferences = kPreferences}});
  const auto priority = [&](const char* line) { return Term(Explain(line), "a.k", "priority"); };
  EXPECT_EQ(priority("input=f32[2,64] weight=f32[64]"), 90);
  EXPECT_EQ(priority("input=f32[3,64] weight=f32[64]"), 5);
  EXPECT_EQ(priority("input=f32[2,70] weight=f32[70]"), 100);
  EXPECT_EQ(priority("input=f32[2,71] weight=f32[71]"), 90);  // one of two conditions
  EXPECT_EQ(priority("input=f32[3,70] weight=f32[70]"), 5);   // both preferences
}
TEST_F(Preferences, AKernelThatIsRankedLowerIsNotRefused) {
  Register({{.id = "a.k", .priority = 90, .preferences = kPreferences}});
  EXPECT_EQ(Winner(), "a.k");
  SelectionReport report = Explain("input=f32[3,64] weight=f32[64]");
  EXPECT_EQ(Winner(report), "hwy.norm.rms");
  EXPECT_TRUE(Admissible(report, "a.k"));
  EXPECT_EQ(Of(report, "a.k").preference, &Of(report, "a.k").kernel->preferences[0]);
  Measure({{"a.k", {10, 0.02, 1}}, {"hwy.norm.rms", {20, 0.02, 1}}});  // time corrects a preference
  EXPECT_EQ(Winner(Explain("input=f32[3,64] weight=f32[64]")), "a.k");
}
TEST_F(Preferences, ACachedPlanDoesNotCrossAPreference) {
  Register({{.id = "a.k", .priority = 90, .preferences = kPreferences}});
  const auto select = [&](std::string line) {
    auto c = verify::ParseCase(op, line);
    Request r = c->MakeRequest();
    EXPECT_TRUE(selector.Bind(r).ok());
    InlineCache site;
    auto plan = selector.Select(r, site);
    EXPECT_TRUE(plan.ok());
    return (*plan)->kernel->id;
  };
  for (int repeat = 0; repeat < 2; ++repeat) {  // filling the cache, and from it
    EXPECT_EQ(select("input=f32[2,64] weight=f32[64]"), "a.k");
    EXPECT_EQ(select("input=f32[3,64] weight=f32[64]"), "hwy.norm.rms");
    EXPECT_EQ(select("input=f32[1,64] weight=f32[64]"), "a.k");
    EXPECT_EQ(select("input=f32[2,70] weight=f32[70]"), "a.k");
    EXPECT_EQ(select("input=f32[4,70] weight=f32[70]"), "hwy.norm.rms");
  }
}
TEST_F(Preferences, PreferencesWithoutConditionsOrWithOtherPrioritiesAreRefused) {
  static constexpr auto kAlways = std::to_array<Preference>({{.when = {}, .priority = 5}});
  static constexpr auto kTooHigh = std::to_array<Preference>({{.when = kManyRows, .priority = 101}});
  static constexpr auto kOther = std::to_array<Constraint>({{"speed", Rel::kEq, 1}});
  static constexpr auto kUnknown = std::to_array<Preference>({{.when = kOther, .priority = 5}});
  for (const auto preferences : {std::span<const Preference>(kAlways), {kTooHigh}, {kUnknown}}) {
    const KernelSpec spec = {
        .id = "a.k", .operation = "norm.rms", .dtypes = kFloats, .preferences = preferences, .launch = &Works};
    const Registry::Registration one{&spec, {}, {}};
    const Status status = selector.registry().Register({&one, 1});
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    EXPECT_EQ(status.parts().field, "kernel a.k");
  }
}

}  // namespace
}  // namespace lz
