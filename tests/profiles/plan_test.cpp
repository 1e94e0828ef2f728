// Plan and strategy files, overrides, and which of them wins.
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/load.h"
#include "tests/profiles/support.h"
#include "tests/spec/knob_values.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;
using profile_tests::error_of;
using profile_tests::holds;

// Every knob away from its default.
Plan unusual() {
  Plan plan;
  plan.model = "gpt2";
  plan.machine = "here";
  plan.strategy = "superoffload";
  plan.devices = 128;
  plan.data = 4;
  plan.tensor = 2;
  plan.pipeline = 2;
  plan.virtual_pipeline = 3;
  plan.sequence = 2;
  plan.context = 4;
  plan.expert = 2;
  plan.tensor_sequence = true;
  plan.numa = NumaBinding::kRemote;
  plan.zero_stage = 1;
  plan.global_batch = 64;
  plan.micro_batch = 2;
  plan.sequence_length = 512;
  plan.dtype = DType::kF16;
  plan.products = ProductFormat::kFp8;
  plan.weights = {0.25, 7};
  plan.optimizer = {OptimizerPlacement::kGpu, {1 << 20}, 3,   CastPlacement::kCpu, SyncMode::kDelay,
                    UndoKind::kExact,         "avx2",    0.5, DType::kBf16};
  plan.activations = ActivationPlan{};
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kOffload;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
  plan.activations->offload_share = 0.5;
  plan.activations->look_ahead = 2;
  plan.activations->scores = ActivationFate::kRecompute;
  plan.memory_reuse = MemoryReuse::kAtOnce;
  plan.checkpoint_period_steps = 100;
  return plan;
}

TEST(Plans, every_knob_survives_a_round_trip) {
  EXPECT_EQ(parse_plan(plan_json(Plan{}), "p"), Plan{});
  EXPECT_EQ(parse_plan(plan_json(unusual()), "p"), unusual());
  const profile_tests::TemporaryFolder folder;
  save_plan(unusual(), folder.file("plan.json"));
  EXPECT_EQ(load_plan(folder.file("plan.json")), unusual());
}

// The keys of a file in which two plans differ, dotted.
std::vector<std::string> keys_that_differ(const Plan& a, const Plan& b) {
  std::vector<std::string> keys;
  for (const Json& change : Json::diff(Json::parse(plan_json(a)), Json::parse(plan_json(b)))) {
    std::string key = change["path"].get<std::string>().substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    keys.push_back(key);
  }
  return keys;
}

TEST(Plans, each_knob_of_the_table_is_a_key_of_its_own_and_can_be_set) {
  for (const Knob& knob : knobs()) {
    if (knob.type == KnobType::kGroup) continue;
    const Plan before = knob_tests::with_values();
    for (const KnobValue& value : knob_tests::other_values(knob)) {
      Plan plan = before;
      knob.set(plan, value);
      if (plan == before) continue;
      EXPECT_EQ(parse_plan(plan_json(plan), "p"), plan) << knob.path;
      const std::vector<std::string> keys = keys_that_differ(before, plan);
      if (knob.type == KnobType::kFates) {
        EXPECT_EQ(keys.size(), saving_kinds().size());
        continue;
      }
      EXPECT_EQ(keys, std::vector<std::string>{std::string(knob.path)});
      const Override change{std::string(knob.path), text_of(knob, value)};
      EXPECT_EQ(apply_override(before, change), plan) << knob.path;
    }
    if (!knob.may_be_auto) continue;
    Plan open = before;
    knob.set(open, {});
    EXPECT_EQ(parse_plan(plan_json(open), "p"), open) << knob.path;
    EXPECT_EQ(apply_override(before, {std::string(knob.path), "auto"}), open) << knob.path;
  }
}

TEST(Plans, knobs_that_older_files_lack_have_their_defaults) {
  for (const Knob& knob : knobs()) {
    if (knob.type == KnobType::kGroup || knob.type == KnobType::kFates) continue;
    Plan plan = knob_tests::with_values();
    Json json = Json::parse(plan_json(plan));
    Json& object = knob.object().empty() ? json : json[std::string(knob.object())];
    object.erase(std::string(knob.key()));
    if (knob.may_be_absent) {
      knob.set(plan, default_of(knob));
      EXPECT_EQ(parse_plan(json.dump(), "p"), plan) << knob.path;
    } else {
      const std::string message = error_of([&] { parse_plan(json.dump(), "p"); });
      EXPECT_TRUE(holds(message, "'" + std::string(knob.path) + "': is missing")) << message;
    }
  }
}

TEST(Plans, absent_choices_are_written_as_auto) {
  const Json json = Json::parse(plan_json(Plan{}));
  EXPECT_EQ(json["micro_batch"], "auto");
  EXPECT_EQ(json["activations"], "auto");
  EXPECT_EQ(json["memory_reuse"], "auto");
  EXPECT_EQ(json["optimizer"]["gpu_buckets"], "auto");
  EXPECT_EQ(json["weights"]["flow_share"], "auto");
  EXPECT_EQ(json["optimizer"]["bucket_bytes"], 67108864);
}

struct KnobChange {
  const char* pointer;
  Json value;
  const char* message;
};

TEST(Plans, wrong_values_name_the_file_and_the_key) {
  const KnobChange changes[] = {
      {"/schema", "ballast.machine/1", "key 'schema'"},
      {"/optimizer/cast", "gpuu", "key 'optimizer.cast': is 'gpuu'; did you mean 'gpu'?"},
      {"/optimizer/sync", "later", "known are wait, delay, speculate"},
      {"/optimizer/bucket_bytes", 0, "key 'optimizer.bucket_bytes': is 0"},
      {"/optimizer/bucket_byte", 1, "did you mean 'bucket_bytes'"},
      {"/optimizer/gpu_buckets", "some", "must be a whole number, and is a text"},
      {"/optimizer/gpu_buckets", -1, "key 'optimizer.gpu_buckets': is -1"},
      {"/weights", "flow", "key 'weights': must be an object"},
      {"/weights/flow_share", 1.5, "key 'weights.flow_share': is 1.5"},
      {"/activations/norm1", "drop", "known are keep, recompute, offload"},
      {"/activations/head", "keep", "key 'activations.head': is unknown"},
      {"/micro_batch", 0, "key 'micro_batch': is 0"},
      {"/dtype", "bf15", "did you mean 'bf16'"},
      {"/products", "fp4", "key 'products': is 'fp4'"},
      {"/tensr", 2, "key 'tensr': is unknown; did you mean 'tensor'?"},
      {"/tensor", 0, "key 'tensor': is 0"},
      {"/tensor_sequence", 1, "must be true or false"},
      {"/numa", "near", "known are local, remote"},
      {"/memory_reuse", "never", "known are apart, at-once"},
      {"/optimizer/stream_share", 1.5, "key 'optimizer.stream_share': is 1.5"},
      {"/optimizer/moments", "fp16", "key 'optimizer.moments'"},
      {"/activations/scores", "offload", "key 'activations.scores'"},
      {"/devices", 3000000000, "key 'devices'"}};
  for (const KnobChange& change : changes) {
    Json json = Json::parse(plan_json(unusual()));
    json[Pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { parse_plan(json.dump(), "my-plan.json"); });
    EXPECT_TRUE(holds(message, change.message)) << change.pointer;
    EXPECT_TRUE(holds(message, "my-plan.json")) << change.pointer;
  }
}

// Plans that were written before a knob existed do not name it.
TEST(Plans, every_key_is_required_but_those_that_older_plans_lack) {
  const Json json = Json::parse(plan_json(unusual()));
  int required = 0;
  for (const auto& item : json.items()) {
    const Knob* const knob = find_knob(item.key());
    if (knob != nullptr && knob->may_be_absent) continue;
    Json less = json;
    less.erase(item.key());
    EXPECT_TRUE(holds(error_of([&] { parse_plan(less.dump(), "p"); }), "is missing")) << item.key();
    ++required;
  }
  EXPECT_GT(required, 10);
}

TEST(Plans, what_an_older_plan_lacks_has_its_default) {
  Json json = Json::parse(plan_json(Plan{}));
  int lacking = 0;
  for (const Knob& knob : knobs()) {
    if (!knob.may_be_absent) continue;
    Json& holder = knob.object().empty() ? json : json[std::string(knob.object())];
    if (holder.is_object()) lacking += static_cast<int>(holder.erase(std::string(knob.key())));
  }
  EXPECT_GT(lacking, 10);
  EXPECT_EQ(parse_plan(json.dump(), "p"), Plan{});
}

TEST(Strategies, each_sets_its_own_switches) {
  const auto optimizer = [](const char* name) {
    PlanRequest request;
    request.strategy = name;
    return resolve_plan(request).optimizer;
  };
  EXPECT_EQ(optimizer("resident").placement, OptimizerPlacement::kGpu);
  EXPECT_EQ(optimizer("zero-offload").sync, SyncMode::kWait);
  EXPECT_EQ(optimizer("zero-offload").cast, CastPlacement::kCpu);
  EXPECT_EQ(optimizer("zero-offload").gpu_buckets, 0);
  EXPECT_EQ(optimizer("zero-offload-delayed").sync, SyncMode::kDelay);
  EXPECT_EQ(optimizer("superoffload").sync, SyncMode::kSpeculate);
  EXPECT_EQ(optimizer("superoffload").cast, CastPlacement::kGpu);
  EXPECT_FALSE(optimizer("superoffload").gpu_buckets.has_value());
}

TEST(Strategies, open_knobs_and_the_adam_of_a_system_are_read) {
  EXPECT_EQ(load_strategy("zero-offload").adam, "cpu-adam");
  EXPECT_EQ(load_strategy("megatron").open,
            (std::vector<std::string>{"zero_stage", "tensor_sequence"}));
  EXPECT_TRUE(load_strategy("superoffload").open.empty());
  const char* text = R"({"schema": "ballast.strategy/1", "description": "d", "source": "s",
                         "open": "zero_stage", "plan": {}})";
  EXPECT_TRUE(holds(error_of([&] { parse_strategy(text, "mine.json", "mine"); }), "key 'open'"));
}

TEST(Strategies, what_no_search_chooses_cannot_be_open) {
  for (const char* path : {"optimizer.synk", "optimizer.moments", "activations.offload_share"}) {
    const std::string text = fmt::format(
        R"({{"schema": "ballast.strategy/1", "description": "d", "source": "s", "open": ["{}"],
            "plan": {{}}}})",
        path);
    EXPECT_TRUE(holds(error_of([&] { parse_strategy(text, "mine.json", "mine"); }), path)) << path;
  }
}

TEST(Strategies, departures_are_the_values_that_a_plan_does_not_keep) {
  const Strategy strategy = parse_strategy(
      R"({"schema": "ballast.strategy/1", "description": "d", "source": "s",
          "plan": {"optimizer": {"sync": "wait", "gpu_buckets": "auto"},
                   "activations": {"qkv": "offload", "offload_share": 0.5}}})",
      "mine.json", "mine");
  Plan plan;
  plan.optimizer.sync = SyncMode::kWait;
  plan.optimizer.gpu_buckets = 3;     // which it leaves open
  plan.optimizer.bucket_bytes = {1};  // of which it says nothing
  plan.activations.emplace();
  plan.activations->fate[static_cast<size_t>(ModuleKind::kQkv)] = ActivationFate::kOffload;
  plan.activations->offload_share = 0.5;
  EXPECT_TRUE(departures(strategy, plan).empty());
  plan.optimizer.sync = SyncMode::kDelay;
  plan.activations->fate.fill(ActivationFate::kKeep);
  const std::vector<const Knob*> found = departures(strategy, plan);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0]->path, "optimizer.sync");
  EXPECT_EQ(found[1]->path, "activations.fate");
}

TEST(Strategies, what_is_shown_of_one_can_be_read_back) {
  for (const Shipped& shipped : shipped_strategies()) {
    const std::string& name = shipped.name;
    const Strategy strategy = load_strategy(name);
    const Strategy again = parse_strategy(strategy_json(strategy), "shown.json", name);
    EXPECT_EQ(again.description, strategy.description);
    EXPECT_EQ(again.open, strategy.open);
    EXPECT_EQ(again.layout, strategy.layout);
    EXPECT_EQ(again.adam, strategy.adam);
    EXPECT_EQ(again.plan, strategy.plan);
  }
}

TEST(Strategies, unknown_knob_is_an_error_with_the_nearest_one) {
  const char* text = R"({"schema": "ballast.strategy/1", "description": "d", "source": "s",
                         "plan": {"optimizer": {"placment": "cpu"}}})";
  EXPECT_TRUE(holds(error_of([&] { parse_strategy(text, "mine.json", "mine"); }),
                    "key 'optimizer.placment': is unknown; did you mean 'placement'?"));
  EXPECT_TRUE(holds(error_of([] { load_strategy("superofload"); }), "did you mean 'superoffload'"));
}

TEST(Strategies, strategy_may_not_name_the_model) {
  const char* text = R"({"schema": "ballast.strategy/1", "description": "d", "source": "s",
                         "plan": {"model": "gpt2"}})";
  EXPECT_TRUE(holds(error_of([&] { parse_strategy(text, "mine.json", "mine"); }), "plan.model"));
}

TEST(Resolve, later_wins_defaults_strategy_flags_overrides) {
  PlanRequest request;
  request.strategy = "zero-offload";
  request.knobs[KnobId::kModel] = "gpt2";
  request.knobs[KnobId::kDevices] = 8;
  request.knobs[KnobId::kGlobalBatch] = 16;
  request.knobs[KnobId::kMicroBatch] = 2;
  request.knobs[KnobId::kSequenceLength] = 128;
  request.knobs[KnobId::kDtype] = "fp32";
  request.overrides = {{"optimizer.cast", "gpu"}, {"global_batch", "32"}};
  const Plan plan = resolve_plan(request);
  EXPECT_EQ(plan.strategy, "zero-offload");
  EXPECT_EQ(plan.optimizer.sync, SyncMode::kWait) << "from the strategy";
  EXPECT_EQ(plan.optimizer.cast, CastPlacement::kGpu) << "the override beats the strategy";
  EXPECT_EQ(plan.global_batch, 32) << "the override beats the flag";
  EXPECT_EQ(plan.devices, 8);
  EXPECT_EQ(plan.data, 8) << "follows the devices";
  EXPECT_EQ(plan.dtype, DType::kF32);
  EXPECT_EQ(plan.optimizer.bucket_bytes.count, 64 << 20) << "the default";
}

TEST(Resolve, plan_file_takes_the_place_of_the_defaults) {
  const profile_tests::TemporaryFolder folder;
  save_plan(unusual(), folder.file("plan.json"));
  PlanRequest request;
  request.plan_file = folder.file("plan.json");
  EXPECT_EQ(resolve_plan(request), unusual());
  // 64 devices over tensor 2 x pipeline 2 x sequence 2 x context 4.
  request.knobs[KnobId::kDevices] = 64;
  EXPECT_EQ(resolve_plan(request).data, 2);
}

TEST(Resolve, data_is_what_the_other_degrees_leave) {
  PlanRequest request;
  request.knobs[KnobId::kDevices] = 64;
  request.knobs[KnobId::kTensor] = 4;
  request.knobs[KnobId::kPipeline] = 2;
  request.knobs[KnobId::kVirtualPipeline] = 3;
  request.knobs[KnobId::kZeroStage] = 1;
  const Plan plan = resolve_plan(request);
  EXPECT_EQ(plan.data, 8);
  EXPECT_EQ(plan.virtual_pipeline, 3) << "no devices of its own";
  EXPECT_EQ(plan.zero_stage, 1);
  request.overrides = {{"context", "2"}};
  EXPECT_EQ(resolve_plan(request).data, 4) << "an override counts too";
  request.knobs[KnobId::kData] = 16;
  EXPECT_EQ(resolve_plan(request).data, 16) << "given, and for check() to refuse";
  request.knobs = {{KnobId::kDevices, 64}, {KnobId::kTensor, 3}};
  EXPECT_TRUE(holds(error_of([&] { resolve_plan(request); }), "use a multiple of 6"));
}

TEST(Resolve, bad_flag_is_an_error) {
  PlanRequest request;
  request.knobs[KnobId::kDtype] = "fp8";
  EXPECT_TRUE(holds(error_of([&] { resolve_plan(request); }), "key 'dtype': is 'fp8'"));
}

TEST(Resolve, text_that_is_not_utf8_is_an_error) {
  PlanRequest request;
  request.knobs[KnobId::kModel] = "\xae";
  EXPECT_TRUE(holds(error_of([&] { resolve_plan(request); }), "is not UTF-8"));
  EXPECT_TRUE(
      holds(error_of([] { apply_override(Plan{}, {"strategy", "\xae"}); }), "is not UTF-8"));
}

TEST(Overrides, are_sorted_by_the_record_they_name) {
  const Overrides all = parse_overrides(
      {"plan.optimizer.cast=cpu", "machine.devices=2", "model.layers=3", "plan.model=a=b"});
  ASSERT_EQ(all.plan.size(), 2u);
  EXPECT_EQ(all.plan[0].key, "optimizer.cast");
  EXPECT_EQ(all.plan[1].value, "a=b");
  EXPECT_EQ(all.machine[0].key, "devices");
  EXPECT_EQ(all.model[0].value, "3");
  EXPECT_TRUE(holds(error_of([] { parse_overrides({"plan.x"}); }), "no '='"));
  EXPECT_TRUE(holds(error_of([] { parse_overrides({"layers=3"}); }), "whose key"));
  EXPECT_TRUE(holds(error_of([] { parse_overrides({"pln.x=3"}); }), "did you mean 'plan'"));
}

TEST(Overrides, short_forms_of_a_plan_are_expanded) {
  EXPECT_EQ(apply_override(Plan{}, {"weights", "flow"}).weights.flow_share, 1.0);
  EXPECT_EQ(apply_override(Plan{}, {"weights", "stationary"}).weights.flow_share, 0.0);
  const Plan all = apply_override(Plan{}, {"activations", "recompute"});
  for (int i = 0; i < kModuleKinds; ++i) {
    const auto kind = static_cast<ModuleKind>(i);
    if (!saves_output(kind)) continue;
    // The layer's input, the output of fc2, is what recomputing it starts from.
    EXPECT_EQ(all.activations->fate[static_cast<size_t>(i)],
              kind == ModuleKind::kFc2 ? ActivationFate::kKeep : ActivationFate::kRecompute);
  }
  const Plan one = apply_override(Plan{}, {"activations.fc1", "offload"});
  EXPECT_EQ(one.activations->fate[static_cast<size_t>(ModuleKind::kFc1)], ActivationFate::kOffload);
  EXPECT_EQ(one.activations->fate[static_cast<size_t>(ModuleKind::kFc2)], ActivationFate::kKeep);
  EXPECT_FALSE(apply_override(all, {"activations", "auto"}).activations.has_value());
  EXPECT_TRUE(holds(error_of([] { apply_override(Plan{}, {"optimizer.cst", "cpu"}); }),
                    "--set plan.optimizer.cst: key 'optimizer.cst': is unknown; did you mean "
                    "'cast'?"));
  EXPECT_THROW(apply_override(Plan{}, {"optimizer", "cpu"}), Error);
  EXPECT_THROW(apply_override(Plan{}, {"", "1"}), Error);
  EXPECT_THROW(apply_override(Plan{}, {"devices.", "1"}), Error);
  EXPECT_THROW(apply_override(Plan{}, {std::string(100'000, '.'), "1"}), Error);
}

TEST(Overrides, number_replaces_a_sourced_value_and_its_source) {
  const Machine before = load_machine("gh200-96gb-480gb");
  const Machine after = apply_override(before, {"cpu.memory_bandwidth_gb_per_s", "500"});
  EXPECT_EQ(after.cpu.memory_bandwidth.value.bytes_per_s, 500e9);
  EXPECT_FALSE(after.cpu.memory_bandwidth.measured);
  EXPECT_EQ(after.cpu.memory_bandwidth.source, "--set machine.cpu.memory_bandwidth_gb_per_s");
  EXPECT_TRUE(holds(error_of([&] { apply_override(before, {"cpu.memory_gib", "1"}); }),
                    "did you mean 'memory_gb'"));
  EXPECT_TRUE(holds(error_of([&] { apply_override(before, {"node.latency_us", "1"}); }),
                    "'node' holds no keys"));
  EXPECT_THROW(apply_override(before, {"gpu", "3"}), Error);
  EXPECT_THROW(apply_override(before, {"gpu.memory_gb", "-3"}), Error);
}

// Bytes are so many times as fast, and what a copy takes beside them, its start, stays.
void expect_scaled(const Curve& after, const Curve& before, double factor) {
  ASSERT_EQ(after.points.size(), before.points.size());
  const double byte_before = 1 / before.points.back().rate;
  const double byte_after = 1 / after.points.back().rate;
  EXPECT_NEAR(byte_after * factor / byte_before, 1, 1e-6);
  for (size_t i = 0; i < after.points.size(); ++i) {
    EXPECT_NEAR((1 / after.points[i].rate - byte_after) / (1 / before.points[0].rate),
                (1 / before.points[i].rate - byte_before) / (1 / before.points[0].rate), 1e-6)
        << i;
  }
}

double plateau(const Curve& curve) { return curve.points.back().rate; }

// In the unit of the key, as a user gives it.
std::string in_gb_per_s(double bytes_per_s) { return fmt::format("{}", bytes_per_s / 1e9); }

// The plateau becomes twice as high: so fast are the bytes of every point.
TEST(Overrides, number_scales_the_curve_of_a_link_to_its_plateau) {
  const Machine before = load_machine("gh200-96gb-480gb");
  const std::string twice = in_gb_per_s(2 * plateau(before.link.host_to_device));
  const Machine after = apply_override(before, {"link.host_to_device", twice});
  expect_scaled(after.link.host_to_device, before.link.host_to_device, 2);
  EXPECT_FALSE(after.link.host_to_device.measured);
}

TEST(Overrides, curve_may_be_named_with_the_unit_of_its_rates) {
  const Machine before = load_machine("gh200-96gb-480gb");
  const std::string twice = in_gb_per_s(2 * plateau(before.link.host_to_device));
  const Machine after = apply_override(before, {"link.host_to_device_gb_per_s", twice});
  expect_scaled(after.link.host_to_device, before.link.host_to_device, 2);
  expect_scaled(after.link.device_to_host, before.link.device_to_host, 1);
  EXPECT_TRUE(holds(
      error_of([&] { apply_override(before, {"link.host_to_device_parameters_per_s", "1"}); }),
      "unknown"))
      << "not its unit";
}

// To the device it becomes half as fast: so do the way back and both together.
TEST(Overrides, link_as_a_whole_keeps_the_proportion_of_its_directions) {
  const Machine before = load_machine("gh200-96gb-480gb");
  const std::string half = in_gb_per_s(0.5 * plateau(before.link.host_to_device));
  const Machine after = apply_override(before, {"link.gb_per_s", half});
  expect_scaled(after.link.host_to_device, before.link.host_to_device, 0.5);
  expect_scaled(after.link.device_to_host, before.link.device_to_host, 0.5);
  EXPECT_NEAR(after.link.both_total.value.bytes_per_s,
              0.5 * before.link.both_total.value.bytes_per_s, 1);
  EXPECT_EQ(after.link.both_total.source, "--set machine.link.gb_per_s");
  EXPECT_FALSE(after.link.device_to_host.measured);
  for (const char* bad : {"0", "-1", "fast"}) {
    EXPECT_TRUE(holds(error_of([&] { apply_override(before, {"link.gb_per_s", bad}); }), "above 0"))
        << bad;
  }
}

TEST(Overrides, width_of_a_model_keeps_its_head_count) {
  const Model before = load_model("gpt2");
  EXPECT_EQ(apply_override(before, {"layers", "3"}).layers, 3);
  EXPECT_EQ(apply_override(before, {"hidden", "1536"}).head_size, 128);
  EXPECT_EQ(apply_override(before, {"heads", "24"}).kv_heads, 24);
  EXPECT_TRUE(holds(error_of([&] { apply_override(before, {"hidden", "1000"}); }),
                    "12 heads do not divide a width of 1000"));
  EXPECT_TRUE(
      holds(error_of([&] { apply_override(before, {"layer", "3"}); }), "did you mean 'layers'"));
  EXPECT_THROW(apply_override(before, {"layers", "many"}), Error);
}

TEST(Models, our_record_of_every_shipped_model_survives_a_round_trip) {
  for (const Shipped& shipped : shipped_models()) {
    const Model model = load_model(shipped.name);
    const std::string text = model_json(model);
    EXPECT_EQ(model_json(apply_override(model, {"layers", std::to_string(model.layers)})), text);
  }
}

}  // namespace
}  // namespace ballast
