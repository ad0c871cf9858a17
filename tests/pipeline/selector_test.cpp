// Selection by the rules: scoring terms, measured against ranked, preferred and avoided, denials, ties, fallback,
// flags.
#include "tests/pipeline/selector_testing.h"

namespace lz {
namespace {

TEST_F(SelectorTest, PriorityRanksWhatIsUnmeasured) {
  Register({{.id = "a.k", .priority = 70}, {.id = "b.k", .priority = 90}});
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "b.k");
  EXPECT_EQ(Term(report, "b.k", "priority"), 90);
  EXPECT_EQ(Term(report, "a.k", "priority"), 70);
  EXPECT_EQ(Of(report, "b.k").score, 90);
}

TEST_F(SelectorTest, TiesGoToTheSmallerId) {
  Register({{.id = "z.k", .priority = 90}, {.id = "b.k", .priority = 90}, {.id = "c.k", .priority = 90}});
  EXPECT_EQ(Winner(), "b.k");
}
TEST_F(SelectorTest, TiesDoNotDependOnTheOrderOfRegistration) {
  Register({{.id = "c.k", .priority = 90}, {.id = "b.k", .priority = 90}, {.id = "z.k", .priority = 90}});
  EXPECT_EQ(Winner(), "b.k");
}

TEST_F(SelectorTest, AReferenceWinsOnlyAlone) {
  Register({{.id = "a.k", .priority = 0}});
  Configure(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*"]}]})");
  EXPECT_EQ(Winner(), "a.k");
  Configure(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*", "a.k"]}]})");
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "ref.norm.rms");
  EXPECT_TRUE(report.plan->uses_fallback());
}

TEST_F(SelectorTest, AConfidentTimeBeatsAnyPriority) {
  Register({{.id = "slow.k", .priority = 100}, {.id = "fast.k", .priority = 10}});
  Measure({{"slow.k", {100, 0.02, 1}}, {"fast.k", {10, 0.02, 1}}, {"hwy.norm.rms", {50, 0.02, 1}}});
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "fast.k");
  EXPECT_EQ(Term(report, "fast.k", "measured"), 0);
  EXPECT_EQ(Term(report, "slow.k", "measured"), kWorstMeasuredTerm);
  EXPECT_EQ(Of(report, "slow.k").measured_us, 100);
}
TEST_F(SelectorTest, WithinNoisePriorityDecides) {
  Register({{.id = "a.k", .priority = 90}, {.id = "b.k", .priority = 95}});
  Measure({{"a.k", {100, 0.05, 1}}, {"b.k", {104, 0.05, 1}}});
  EXPECT_EQ(Winner(), "b.k");
  Measure({{"a.k", {100, 0.01, 1}}, {"b.k", {104, 0.01, 1}}});
  EXPECT_EQ(Winner(), "a.k");
}
TEST_F(SelectorTest, AnUnsureTimeIsOnlyATerm) {
  Register({{.id = "a.k", .priority = 95}, {.id = "b.k", .priority = 90}});
  Measure({{"a.k", {110, 0.01, 0.3}}, {"b.k", {100, 0.01, 0.3}}});
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "a.k");
  EXPECT_NEAR(Term(report, "a.k", "measured"), -10 * 0.1 * 0.3, 1e-12);
}
// Kernels are timed in turns: where one of them was measured in another version of its library, no time decides.
TEST_F(SelectorTest, ATimeOfAnotherVersionMakesAllOfTheCallHints) {
  Register({{.id = "a.k", .priority = 95}, {.id = "b.k", .priority = 90}});
  for (const bool other : {false, true}) {
    Measure({{"a.k", {110, 0.01, 1, other}}, {"b.k", {100, 0.01, 1}}});
    const SelectionReport report = Explain();
    EXPECT_EQ(Winner(report), other ? "a.k" : "b.k");
    EXPECT_NEAR(Term(report, "a.k", "measured"), -10 * 0.1 * (other ? kOtherVersion : 1), 1e-12);
  }
  Configure(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["a.k"]}]})");
  Measure({{"a.k", {1, 0.01, 1, true}}, {"b.k", {100, 0.01, 1}}, {"hwy.norm.rms", {50, 0.01, 1}}});
  EXPECT_EQ(Winner(), "hwy.norm.rms");  // what may not run does not count
}

TEST_F(SelectorTest, PreferredAddsToTheScore) {
  Register({{.id = "a.k", .priority = 95}, {.id = "b.k", .priority = 90}});
  Configure(R"({"prefer_sources": ["b"]})");
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "b.k");
  EXPECT_EQ(Term(report, "b.k", "preferred"), kPreferredBonus);
}
TEST_F(SelectorTest, TheFirstPreferredIsPreferredMost) {
  Register({{.id = "a.k", .priority = 90}, {.id = "b.k", .priority = 90}, {.id = "c.k", .priority = 90}});
  const auto first_of = [&](const char* policy) {
    Configure(policy);
    return Winner();
  };
  EXPECT_EQ(first_of(R"({"prefer_sources": ["c", "b"]})"), "c.k");
  EXPECT_EQ(first_of(R"({"prefer_sources": ["b", "c"]})"), "b.k");
  EXPECT_EQ(first_of(R"({"prefer_sources": ["zz", "b", "c"]})"), "b.k");
  const SelectionReport report = Explain();
  EXPECT_EQ(Term(report, "b.k", "preferred"), kPreferredBonus / 2);
  EXPECT_EQ(Term(report, "c.k", "preferred"), kPreferredBonus / 3);
  EXPECT_EQ(first_of(R"({"prefer_sources": [], "rules": [{"prefer": ["c.k", "b.k"]}]})"), "c.k");
  EXPECT_EQ(first_of(R"({"rules": [{"prefer": ["b.k", "c.k"]}]})"), "b.k");
  // Among measured kernels too, as long as they are within the tolerance.
  Measure({{"a.k", {100, 0.001, 1}}, {"b.k", {104, 0.001, 1}}, {"c.k", {103, 0.001, 1}}});
  EXPECT_EQ(first_of(R"({"rules": [], "prefer_sources": ["b", "c"], "prefer_tolerance": 0.1})"),
            "b.k");  // proves: prefer_tolerance, prefer_sources
  EXPECT_EQ(first_of(R"({"prefer_sources": ["c", "b"]})"), "c.k");
  EXPECT_EQ(first_of(R"({"prefer_sources": ["b", "c"], "prefer_tolerance": 0.035})"), "c.k");
}
TEST_F(SelectorTest, PreferredWinsWithinTheToleranceOfTheBestTime) {
  Register({{.id = "a.k", .priority = 95}, {.id = "b.k", .priority = 10}});
  Configure(R"({"prefer_sources": ["b"], "prefer_tolerance": 0.1})");
  Measure({{"a.k", {100, 0.001, 1}}, {"b.k", {109, 0.001, 1}}, {"hwy.norm.rms", {200, 0.001, 1}}});
  EXPECT_EQ(Winner(), "b.k");
  Measure({{"a.k", {100, 0.001, 1}}, {"b.k", {111, 0.001, 1}}, {"hwy.norm.rms", {200, 0.001, 1}}});
  EXPECT_EQ(Winner(), "a.k");
}
TEST_F(SelectorTest, AvoidedWinsOnlyAgainstReferences) {
  Register({{.id = "a.k", .priority = 100}});
  Configure(R"({"avoid_sources": ["a"]})");  // proves: avoid_sources
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "hwy.norm.rms");
  EXPECT_EQ(Term(report, "a.k", "avoided"), kAvoidedMalus);
  Measure({{"a.k", {1, 0.001, 1}}, {"hwy.norm.rms", {100, 0.001, 1}}});
  EXPECT_EQ(Winner(), "hwy.norm.rms");
  Configure(R"({"avoid_sources": ["a"], "allow_sources": ["a"]})");  // proves: allow_sources
  EXPECT_EQ(Winner(), "a.k");
}

// Ties and preference within one set must not depend on the order in which pairs are compared.
TEST_F(SelectorTest, TheWinnerDoesNotDependOnTheOrderOfCandidates) {
  const std::map<std::string, Measurement> times = {
      {"a.k", {100, 0.03, 1}}, {"b.k", {104, 0.03, 1}}, {"c.k", {108, 0.03, 1}}, {"d.k", {101, 0.03, 0.2}}};
  std::vector<std::pair<std::string, int>> kernels = {{"a.k", 10}, {"b.k", 50}, {"c.k", 90}, {"d.k", 40}};
  std::sort(kernels.begin(), kernels.end());
  std::string first;
  do {
    Selector fresh;
    for (const auto& [id, priority] : kernels) {
      KernelSpec s{.id = id,
                   .operation = "norm.rms",
                   .dtypes = kFloats,
                   .accepts = kWeight,
                   .priority = priority,
                   .launch = &Works};
      const Registry::Registration one{&s, {}, {}};
      ASSERT_TRUE(fresh.registry().Register({&one, 1}).ok());
    }
    fresh.set_measurements([&](const KernelEntry& k, const BoundCall&) -> std::optional<Measurement> {
      const auto at = times.find(k.id);
      return at == times.end() ? std::nullopt : std::optional(at->second);
    });
    auto c = verify::ParseCase(*fresh.registry().Find("rms_norm"), "input=f32[2,64] weight=f32[64]");
    Request r = c->MakeRequest();
    ASSERT_TRUE(fresh.Bind(r).ok());
    auto report = fresh.Explain(r);
    ASSERT_TRUE(report.ok());
    if (first.empty()) first = Winner(*report);
    ASSERT_EQ(Winner(*report), first) << "order " << kernels[0].first << kernels[1].first << kernels[2].first;
  } while (std::next_permutation(kernels.begin(), kernels.end()));
}

TEST_F(SelectorTest, WithoutFallbackNoReferenceRuns) {
  // proves: fallback_enabled
  Configure(R"({"fallback_enabled": false, "rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*"]}]})");
  const SelectionReport report = Explain();
  EXPECT_EQ(report.winner, -1);
  EXPECT_TRUE(Has(report, "hwy.norm.rms", ReasonCode::kPolicyDenied));
  Request r = parsed.back()->MakeRequest();
  ASSERT_TRUE(selector.Bind(r).ok());
  auto plan = selector.Select(r);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kNoKernel);
  EXPECT_EQ(plan.status().parts().field, "norm.rms");
}
TEST_F(SelectorTest, DisabledMeansReferences) {
  Configure(R"({"enabled": false})");
  EXPECT_EQ(Winner(), "ref.norm.rms");
  Configure(R"({"enabled": false, "fallback_enabled": false})");
  EXPECT_EQ(Winner(), "ref.norm.rms");
  Configure(R"({"enabled": true})");
  EXPECT_EQ(Winner(), "hwy.norm.rms");
}

TEST_F(SelectorTest, DeterministicRefusesWhatDoesNotSaySo) {
  Register({{.id = "a.k", .priority = 100}});
  EXPECT_EQ(Winner(), "a.k");
  Configure(R"({"deterministic": true})");
  const SelectionReport report = Explain();
  EXPECT_EQ(Winner(report), "hwy.norm.rms");
  EXPECT_TRUE(Has(report, "a.k", ReasonCode::kNonDeterministic));
}
TEST_F(SelectorTest, CapturingAndGradients) {
  Register(
      {{.id = "a.k", .priority = 1, .cuda_graph_safe = true}, {.id = "b.k", .priority = 1, .requires_grad = true}});
  const SelectionReport captured = Explain("input=f32[2,64] weight=f32[64]", LZ_FLAG_CAPTURING);
  EXPECT_EQ(Winner(captured), "a.k");
  EXPECT_TRUE(Has(captured, "hwy.norm.rms", ReasonCode::kCudaGraphUnsafe));
  const SelectionReport grad = Explain("input=f32[2,64] weight=f32[64]", LZ_FLAG_REQUIRES_GRAD);
  EXPECT_EQ(Winner(grad), "b.k");
  EXPECT_TRUE(Has(grad, "hwy.norm.rms", ReasonCode::kGradUnsupported));
}

TEST_F(SelectorTest, AMeasuredKernelWinsATieAgainstOneThatWasNot) {
  Register({{.id = "a.k", .priority = 95}, {.id = "z.k", .priority = 95}});
  EXPECT_EQ(Winner(), "a.k");
  for (const double confidence : {1.0, 0.5}) {
    Measure({{"z.k", {.median_us = 3, .confidence = confidence}}});
    EXPECT_EQ(Winner(), "z.k");
  }
  Measure({{"z.k", {.median_us = 3, .confidence = 1}}, {"a.k", {.median_us = 2.99, .noise = 0.1, .confidence = 1}}});
  EXPECT_EQ(Winner(), "a.k");
}

TEST_F(SelectorTest, TimesThatNoiseDoesNotSeparateLeaveTheDefault) {
  Register({{.id = "a.k", .priority = 94}, {.id = "z.k", .priority = 95}});
  const auto measure = [&](double default_us, double noise) {
    Measure({{"a.k", {.median_us = 2, .noise = noise, .confidence = 1}},
             {"z.k", {.median_us = default_us, .noise = noise, .confidence = 1}}});
    return Winner();
  };
  EXPECT_EQ(measure(5, 0.8), "z.k");  // 2.5 times slower, if the noise is to be believed
  EXPECT_EQ(measure(2.1, 0.03), "z.k");
  EXPECT_EQ(measure(2.2, 0.03), "a.k");
  Register({{.id = "b.k", .priority = 95}});
  Measure({{"b.k", {.median_us = 2, .noise = 0.1, .confidence = 1}},
           {"z.k", {.median_us = 2.1, .noise = 0.1, .confidence = 1}}});
  EXPECT_EQ(Winner(), "b.k");  // of two equals the faster
  // A kernel with a time that is not trusted competes with the one that the trusted times leave, by all terms.
  Measure({{"b.k", {.median_us = 0.9, .confidence = 0.5}},
           {"z.k", {.median_us = 2, .noise = 0.5, .confidence = 1}},
           {"a.k", {.median_us = 1, .noise = 0.5, .confidence = 1}}});
  EXPECT_EQ(Winner(), "b.k");
}

TEST_F(SelectorTest, ACaptureThatExcludesEveryKernelNamesThem) {
  const auto select = [&](uint32_t flags, int64_t policy = 0) {
    auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
    Request r = c->MakeRequest();
    r.flags = flags;
    r.policy = policy;
    EXPECT_TRUE(selector.Bind(r).ok());
    return selector.Select(r);
  };
  Register({{.id = "narrow.k", .platform = Platform::kRocm}});  // refused for its platform, too: not named
  EXPECT_TRUE(select(0).ok());
  auto plan = select(LZ_FLAG_CAPTURING);
  ASSERT_EQ(plan.status().code(), StatusCode::kGraphUnsafe);
  EXPECT_THAT(plan.status().parts().got, testing::HasSubstr("hwy.norm.rms"));
  EXPECT_THAT(plan.status().parts().got, testing::HasSubstr("ref.norm.rms (not declared safe)"));
  EXPECT_THAT(plan.status().parts().got, testing::Not(testing::HasSubstr("narrow.k")));

  auto scope = selector.policies().Scope(0, R"({"locks": {"norm.rms": "hwy.norm.rms"}})");
  ASSERT_TRUE(scope.ok());
  EXPECT_TRUE(select(0, *scope).ok());
  plan = select(LZ_FLAG_CAPTURING, *scope);
  ASSERT_EQ(plan.status().code(), StatusCode::kGraphUnsafe);
  EXPECT_THAT(plan.status().parts().got, testing::Not(testing::HasSubstr("ref.norm.rms")));

  Register({{.id = "safe.k", .priority = 1, .cuda_graph_safe = true}});
  EXPECT_TRUE(select(LZ_FLAG_CAPTURING).ok());
}

TEST_F(SelectorTest, ACopyCostsPointsAndStrictModeForbidsIt) {
  Register({{.id = "dense.k", .priority = 90}, {.id = "free.k", .strides = Strides::kAny, .priority = 80}});
  const char* strided = "input=f32[6,64]@transposed weight=f32[64]";
  EXPECT_EQ(Winner(), "dense.k");
  SelectionReport report = Explain(strided);
  EXPECT_EQ(Winner(report), "free.k");
  EXPECT_LT(Term(report, "dense.k", "transforms"), -1);
  EXPECT_EQ(Of(report, "dense.k").transforms.contiguous, 1u);
  Configure(R"({"strict_mode": true})");
  report = Explain(strided);
  EXPECT_TRUE(Has(report, "dense.k", ReasonCode::kNotContiguous));
  Configure(R"({"strict_mode": false, "allow_adaptation": false})");
  EXPECT_TRUE(Has(Explain(strided), "dense.k", ReasonCode::kNotContiguous));
}

TEST_F(SelectorTest, EveryReasonOfARefusalIsKept) {
  const Constraint rows[] = {{"hidden", Rel::kLe, 32}, {"hidden * 2", Rel::kLt, 100}, {"weight.dtype", Rel::kNe, 2}};
  Register({{.id = "a.k", .constraints = rows, .priority = 100}});
  const SelectionReport report = Explain();
  const Candidate& a = Of(report, "a.k");
  ASSERT_EQ(a.reasons.size(), 3u);
  EXPECT_EQ(a.reasons[0].wanted, 32);
  EXPECT_EQ(a.reasons[0].got, 64);
  EXPECT_EQ(a.reasons[1].got, 128);
  EXPECT_FALSE(Admissible(report, "a.k"));
}

TEST_F(SelectorTest, AFailingKernelFallsBackOnceUnlessItIsLocked) {
  Register({{.id = "bad.k", .priority = 100, .launch = &Fails}});
  auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
  Request r = c->MakeRequest();
  ASSERT_TRUE(selector.Bind(r).ok());
  auto plan = selector.Select(r);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ((*plan)->kernel->id, "bad.k");
  ASSERT_EQ((*plan)->fallback->id, "ref.norm.rms");
  std::vector<float> out(128, -1.0f);
  BindOutput(r, 0, out.data());
  EXPECT_TRUE(selector.Run(**plan, r).ok());
  EXPECT_EQ(selector.num_fallbacks(), 1u);
  EXPECT_NE(out[127], -1.0f);

  Configure(R"({"locks": {"norm.rms": "bad.k"}})");
  Request locked = c->MakeRequest();
  ASSERT_TRUE(selector.Bind(locked).ok());
  plan = selector.Select(locked);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE((*plan)->locked);
  BindOutput(locked, 0, out.data());
  Status status = selector.Run(**plan, locked);
  EXPECT_EQ(status.code(), StatusCode::kKernelFailed);
}

TEST_F(SelectorTest, AWholeClassSharesItsPlan) {
  for (const char* line : {"input=f32[2,64]", "input=f32[3,64]", "input=f32[1000,65]"}) {
    auto c = verify::ParseCase(op, line);
    Request r = c->MakeRequest();
    ASSERT_TRUE(selector.Bind(r).ok());
    ASSERT_TRUE(selector.Select(r).ok());
  }
  EXPECT_EQ(selector.cache_stats().inserted, 1u);
}
TEST_F(SelectorTest, TheCacheCanBeOff) {
  Configure(R"({"cache": {"enabled": false}})");
  auto c = verify::ParseCase(op, "input=f32[2,64]");
  for (int i = 0; i < 3; ++i) {
    Request r = c->MakeRequest();
    ASSERT_TRUE(selector.Bind(r).ok());
    ASSERT_TRUE(selector.Select(r).ok());
  }
  EXPECT_EQ(selector.cache_stats().inserted, 0u);
  EXPECT_EQ(selector.num_selections(), 3u);
}
// A place in the program (a call site of Python, of torch's operators, of a program, of the C ABI) keeps a choice too.
TEST_F(SelectorTest, WhereTheCacheIsOffNoPlaceKeepsAChoice) {
  auto c = verify::ParseCase(op, "input=f32[2,64]");
  InlineCache site;
  const auto select = [&] {
    Request r = c->MakeRequest();
    ASSERT_TRUE(selector.Bind(r).ok());
    if (LookupInline(site, r.facts, selector.epochs())) return;
    ASSERT_TRUE(selector.Select(r, site).ok());
  };
  for (int i = 0; i < 3; ++i) select();
  EXPECT_EQ(selector.num_selections(), 1u);  // the control: it is kept
  Configure(R"({"cache": {"enabled": false}})");
  for (int i = 0; i < 3; ++i) select();
  EXPECT_EQ(selector.num_selections(), 4u);
  EXPECT_EQ(site.plan, nullptr);
  Configure(R"({"cache": {"enabled": true}})");
  for (int i = 0; i < 3; ++i) select();
  EXPECT_EQ(selector.num_selections(), 5u);
}
// A choice that was made because memory was short is one call's.
TEST_F(SelectorTest, APassingChoiceIsKeptNowhere) {
  Register({{.id = "large.k", .priority = 100, .workspace = [](const lz_kernel_args*) { return uint64_t{64} << 20; }}});
  selector.set_free_memory([] { return int64_t{1 << 20}; });
  auto c = verify::ParseCase(op, "input=f32[2,64]");
  InlineCache site;
  for (int i = 0; i < 3; ++i) {
    Request r = c->MakeRequest();
    ASSERT_TRUE(selector.Bind(r).ok());
    auto plan = selector.Select(r, site);
    ASSERT_TRUE(plan.ok());
    EXPECT_NE((*plan)->kernel->id, "large.k");
    EXPECT_EQ(site.plan, nullptr);
  }
  EXPECT_EQ(selector.num_selections(), 3u);
}

TEST_F(SelectorTest, ARemovedKernelIsChosenNoMoreAndItsPlanStaysValid) {
  const auto selected = [&](verify::Case& c, Request* r) {
    *r = c.MakeRequest();
    EXPECT_TRUE(selector.Bind(*r).ok());
    return selector.Select(*r);
  };
  auto c = verify::ParseCase(op, "input=f32[2,64]");
  Request before(op), after(op);
  Registry& registry = selector.registry();
  const size_t kernels = registry.num_kernels();
  for (int again = 0; again < 2; ++again) {  // its id is free again
    Register({{.id = "a.k", .priority = 95}});
    EXPECT_EQ(registry.num_kernels(), kernels + 1);
    auto plan = selected(*c, &before);
    ASSERT_TRUE(plan.ok()) << plan.status().Text();
    EXPECT_EQ((*plan)->kernel->id, "a.k");
    EXPECT_EQ(registry.Remove("adapter of a.k"), 1u);
    EXPECT_EQ(registry.Remove("adapter of a.k"), 0u);
    EXPECT_EQ(registry.Remove(""), 0u);
    EXPECT_EQ(registry.num_kernels(), kernels);
    EXPECT_EQ(registry.FindKernel("norm.rms", "a.k"), nullptr);
    auto other = selected(*c, &after);
    ASSERT_TRUE(other.ok()) << other.status().Text();
    EXPECT_EQ((*other)->kernel->id, "hwy.norm.rms");
    const int launched = g_launched;
    BindOutput(before, 0, nullptr);
    EXPECT_TRUE(selector.Run(**plan, before).ok());
    EXPECT_EQ(g_launched, launched + 1);
  }
}

TEST_F(SelectorTest, ALockOnARemovedKernelBindsAgainWhenItReturns) {
  Configure(R"({"locks": {"norm.rms": "a.k"}})");
  for (int again = 0; again < 2; ++again) {
    Register({{.id = "a.k", .priority = 1}});
    EXPECT_EQ(Explain().lock, "a.k");
    EXPECT_GE(Explain().winner, 0);
    selector.registry().Remove("adapter of a.k");
    EXPECT_EQ(Explain().winner, -1);
  }
}

}  // namespace
}  // namespace lz
