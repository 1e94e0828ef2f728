// `tune` by objectives and under constraints, its studies, and what it remembers, as a user runs
// it.
#include <cmath>

#include "autotune/search/search.h"
#include "cli/flags/tune_flags.h"
#include "cli/tune/search_cache.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/engine/interval.h"
#include "tests/cli/tune_bench.h"

namespace ballast {
namespace {

// --- What is remembered -----------------------------------------------------------------------

TEST_F(Tune, same_question_is_answered_from_the_store_and_says_so) {
  const Json first = tuned("--devices 1");
  EXPECT_FALSE(first["from_store"].get<bool>());
  const Json second = tuned("--devices 1");
  EXPECT_TRUE(second["from_store"].get<bool>());
  for (const char* key : {"ranked", "considered", "simulated", "bounded", "infeasible", "reasons",
                          "objective", "seconds", "proven_within"}) {
    EXPECT_EQ(first[key], second[key]) << key;
  }
  EXPECT_TRUE(tune("--devices 1").says("was found before")) << tune("--devices 1").output;
  EXPECT_FALSE(tuned("--devices 1 --again")["from_store"].get<bool>());
}

TEST_F(Tune, another_question_is_not_answered_from_the_store) {
  tuned("--devices 1");
  for (const std::string other :
       {"--devices 1 --global-batch 4", "--devices 1 --exhaustive --strategy resident",
        "--devices 1 --set machine.gpu.memory_gb=100", "--devices 1 --allow-delay",
        "--devices 1 --headroom-gb 3", "--devices 1 --set model.layers=3", "--devices 2"}) {
    EXPECT_FALSE(tuned(other)["from_store"].get<bool>()) << other;
    EXPECT_TRUE(tuned(other)["from_store"].get<bool>()) << other;
  }
}

TEST_F(Tune, studies_go_on_after_the_searches_that_were_finished) {
  const Json some = tuned("--devices 1 --frontier --frontier-points 2");
  const Json more = tuned("--devices 1 --frontier --frontier-points 4");
  EXPECT_EQ(more["searches"]["from_store"].get<int>(), some["searches"]["asked"].get<int>());
  EXPECT_GT(more["searches"]["asked"].get<int>(), some["searches"]["asked"].get<int>());
}

TEST_F(Tune, interrupted_prints_and_writes_the_best_so_far_and_keeps_no_answer) {
  const std::string flags =
      "tune --model gpt2 --machine gh200-96gb-480gb --store s.db --exhaustive --deadline 600 ";
  const Outcome outcome = bench.interrupt(flags + "--json", "best [0-9]");
  EXPECT_EQ(outcome.code, 0) << outcome.output << bench.read("progress.txt");
  const Json json = Json::parse(outcome.output);
  EXPECT_TRUE(json["interrupted"].get<bool>());
  EXPECT_FALSE(json["complete"].get<bool>());
  const auto plans = [&](const char* key) { return json[key].get<int64_t>(); };
  EXPECT_GT(plans("not_looked_at"), 0);
  EXPECT_EQ(plans("bounded"), 0) << "--exhaustive uses no bound";
  EXPECT_EQ(plans("considered"), plans("simulated") + plans("infeasible") + plans("not_looked_at"));
  EXPECT_EQ(Json::parse(bench.read("plan.json")), json["ranked"][0]["plan"]);
  // The interrupted search answers nothing.
  const Json again =
      Json::parse(bench
                      .run("tune --model gpt2 --machine gh200-96gb-480gb --store s.db --exhaustive "
                           "--deadline 1 --json 2> /dev/null")
                      .output);
  EXPECT_FALSE(again["from_store"].get<bool>());
}

// 70e9 parameters need 16 bytes each and find 576e9: no plan fits, but nobody has waited to see.
TEST_F(Tune, interrupted_without_a_plan_does_not_say_that_nothing_fits) {
  const std::string call =
      "tune --model llama-3-70b --machine gh200-96gb-480gb --store s.db --exhaustive "
      "--deadline 600 ";
  const auto interrupted = [&](const std::string& flags) {
    return bench.interrupt(call + flags, "plans");
  };
  const Outcome text = interrupted("");
  EXPECT_EQ(text.code, 3) << text.output << bench.read("progress.txt");
  EXPECT_TRUE(text.says("interrupted before a plan was found")) << text.output;
  EXPECT_FALSE(text.says("fit")) << text.output;
  const Outcome outcome = interrupted("--json");
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_FALSE(json["complete"].get<bool>());
  EXPECT_EQ(json["stopped_by"], "interrupt");
  EXPECT_FALSE(json["points"][0]["decided"].get<bool>());
  EXPECT_EQ(json["points"][0]["reason"], "not decided");
  EXPECT_FALSE(json.contains("emptied_by"));
  bench.write("tune.json", outcome.output);
  ASSERT_EQ(bench.run("report --tune tune.json --out page.html").code, 0);
  const std::string page = bench.read("page.html");
  EXPECT_NE(page.find("<title>A search that was stopped undecided"), std::string::npos);
  EXPECT_EQ(page.find("nothing fits"), std::string::npos);
}

TEST(Answer, that_is_written_and_read_is_the_same) {
  Plan plan;
  plan.model = "m";
  plan.machine = "h";
  plan.global_batch = 8;
  plan.sequence_length = 128;
  plan.micro_batch = 4;
  SearchResult result;
  Candidate candidate;
  candidate.plan = plan;
  candidate.step_time = {123'456'789'012'345};
  candidate.tokens_per_s = 1.0 / 3;
  candidate.memory = {Bytes{1}, Bytes{(int64_t{1} << 53) + 1}, Bytes{3}};
  candidate.bound = {7};
  result.ranked = {candidate};
  result.best = candidate;
  result.considered = int64_t{1} << 60;
  result.bounded = 5;
  result.not_looked_at = 6;
  result.reasons = {{"GPU memory", 4, plan, "too much", {9}}};
  result.stop = SearchStop::kDeadline;
  result.proven_within = 0.1;
  result.deadline_s = 48;
  const SearchResult back = parse_answer(answer_json(result), "test");
  EXPECT_EQ(back.best->plan, plan);
  EXPECT_EQ(back.best->step_time, candidate.step_time);
  EXPECT_EQ(back.best->tokens_per_s, candidate.tokens_per_s);
  EXPECT_EQ(back.best->memory, candidate.memory);
  EXPECT_EQ(back.best->bound, candidate.bound);
  EXPECT_EQ(back.considered, result.considered);
  EXPECT_EQ(back.not_looked_at, result.not_looked_at);
  EXPECT_EQ(back.reasons[0].example, plan);
  EXPECT_EQ(back.reasons[0].excess, result.reasons[0].excess);
  EXPECT_EQ(back.stop, result.stop);
  EXPECT_EQ(back.proven_within, result.proven_within);
  EXPECT_EQ(back.deadline_s, result.deadline_s);
  EXPECT_EQ(answer_json(back), answer_json(result));
  result.proven_within.reset();
  EXPECT_FALSE(parse_answer(answer_json(result), "test").proven_within);
  for (const char* broken : {"", "{}", "[1]", "{\"ranked\": [{}]}"}) {
    EXPECT_THROW(parse_answer(broken, "test"), Error) << broken;
  }
}

// --- Objectives -------------------------------------------------------------------------------

TEST(Counts, are_lists_or_doublings) {
  using Counts = std::vector<int64_t>;
  const auto counts = [](const char* text) { return parse_counts({"--devices", text}); };
  EXPECT_EQ(counts(""), Counts{});
  EXPECT_EQ(counts("8"), Counts{8});
  EXPECT_EQ(counts("16,8,16"), (Counts{8, 16}));
  EXPECT_EQ(counts("8..64"), (Counts{8, 16, 32, 64}));
  EXPECT_EQ(counts("3..20"), (Counts{3, 6, 12, 20}));
  EXPECT_EQ(counts("4..4"), Counts{4});
  for (const char* bad : {"0", "-1", "a", "8,", ",8", "8..4", "1..", "..4", "1...4", "1.5",
                          "99999999999999999999", "8 ,9"}) {
    EXPECT_THROW(counts(bad), Error) << bad;
  }
}

// One price and power for each device: the cheapest token is the one of most tokens a device.
TEST_F(Tune, points_of_a_list_of_devices_have_all_figures_and_the_best_is_chosen) {
  const Json json = tuned(
      "--objective cost-per-token --devices 1,2,4 --global-batch 16 --price-per-device-hour 3.6 "
      "--watts-per-device 500");
  ASSERT_EQ(json["points"].size(), 3u);
  double cheapest = INFINITY;
  for (const Json& point : json["points"]) {
    const double device_seconds =
        point["step_time_s"].get<double>() * point["devices"].get<double>() / (16 * 64);
    EXPECT_NEAR(point["cost_per_million_tokens"], 1e6 * 3.6 / 3600 * device_seconds,
                1e-6 * point["cost_per_million_tokens"].get<double>());
    EXPECT_NEAR(point["joules_per_token"], 500 * device_seconds,
                1e-6 * point["joules_per_token"].get<double>());
    cheapest = std::min(cheapest, point["cost_per_million_tokens"].get<double>());
  }
  EXPECT_EQ(json["objective"]["name"], "cost-per-token");
  EXPECT_EQ(json["objective"]["value"], cheapest);
  EXPECT_EQ(json["ranked"][0]["plan"], Json::parse(bench.read("plan.json")));
  EXPECT_TRUE(tune("--objective tokens-per-device --devices 1..4 --global-batch 16")
                  .says("by tokens-per-device"));
}

// A long list says where it stands before each search: after the first, what is the best of it.
TEST_F(Tune, list_of_points_shows_the_best_so_far) {
  const Outcome outcome = tune(
      "--objective cost-per-token --devices 1,2,4 --global-batch 16 --price-per-device-hour 3.6 "
      "2>&1 > answer.txt");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("1 of 3; 1 device, batch 16")) << outcome.output;
  EXPECT_TRUE(outcome.says("2 of 3, best so far 1 device, batch 16, ")) << outcome.output;
  EXPECT_TRUE(outcome.says(" price of 1e6 tokens; 2 devices, batch 16")) << outcome.output;
  EXPECT_TRUE(outcome.says("3 of 3, best so far ")) << outcome.output;
}

// The machine says 700 W; a token takes that for the time of a device. Another figure by --set or
// by the flag, which is above both.
TEST_F(Tune, power_is_that_of_the_machine_unless_a_flag_says_another) {
  const auto check = [&](const std::string& flags, double watts, const std::string& source) {
    const Json json = tuned("--devices 2 --global-batch 16 " + flags);
    EXPECT_EQ(json["objective"]["watts_per_device"], watts) << flags;
    EXPECT_NE(json["objective"]["watts_source"].get<std::string>().find(source), std::string::npos)
        << json["objective"];
    const double joules = watts * 2 * json["ranked"][0]["step_time_s"].get<double>() / (16 * 64);
    EXPECT_NEAR(json["points"][0]["joules_per_token"], joules, 1e-6 * joules) << flags;
  };
  check("", 700, "hgx-h200-quad: nominal: NVIDIA H200 SXM data sheet");
  check("--set machine.power_watts=500", 500, "--set machine.power_watts");
  check("--set machine.power_watts=500 --watts-per-device 300", 300, "--watts-per-device");
  EXPECT_TRUE(tune("--objective tokens-per-device --devices 1,2 --global-batch 16")
                  .says("J/token at 700 W a device (hgx-h200-quad: nominal: NVIDIA H200"));
  const Outcome joules = tune("--devices 1 --most-joules-per-token 1e-9");
  EXPECT_EQ(joules.code, 1);
  EXPECT_TRUE(joules.says("--most-joules-per-token of 1e-09 J leaves nothing")) << joules.output;
}

TEST_F(Tune, energy_on_a_machine_of_unknown_power_is_refused_in_one_line) {
  const std::string call =
      "tune --model tiny.json --machine mi300a-quad --devices 1 --sequence-length 64 --store s.db ";
  const Outcome outcome = bench.run(call + "--most-joules-per-token 1");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_EQ(outcome.lines(), 1) << outcome.output;
  for (const char* words : {"--most-joules-per-token", "mi300a-quad", "--watts-per-device"}) {
    EXPECT_TRUE(outcome.says(words)) << outcome.output;
  }
  EXPECT_EQ(bench.run(call + "--most-joules-per-token 1 --watts-per-device 550").code, 0);
  const Json json = Json::parse(bench.run(call + "--json 2> /dev/null").output);
  EXPECT_TRUE(json["points"][0]["joules_per_token"].is_null());
}

TEST_F(Tune, free_batch_is_chosen_within_its_range) {
  const Json json = tuned("--objective tokens-per-device --devices 1 --global-batch 4..32");
  ASSERT_EQ(json["points"].size(), 4u);
  double most = 0;
  for (const Json& point : json["points"]) {
    most = std::max(most, point["tokens_per_s_per_device"].get<double>());
  }
  EXPECT_EQ(json["objective"]["value"], most);
}

// Twice what one device does in a day needs two, and what all do in an hour none can do sooner.
TEST_F(Tune, fewest_devices_for_a_deadline_or_the_deadline_that_would_do) {
  const Json one = tuned("--devices 1 --global-batch 16");
  const double rate = one["ranked"][0]["tokens_per_s"];
  const std::string asked =
      "--objective devices-for-deadline --devices 1,2,4 --global-batch 16 --tokens ";
  const Json day = tuned(asked + std::to_string(0.9 * rate * 86400) + " --deadline-days 1");
  EXPECT_EQ(day["objective"]["value"], 1);
  EXPECT_EQ(day["points"].size(), 3u);  // 1, 2 and 4; only the first was asked
  EXPECT_EQ(day["points"][1]["reason"], "not searched");
  const Outcome never = tune(asked + "1e30 --deadline-days 1");
  EXPECT_EQ(never.code, 1);
  EXPECT_TRUE(never.says("--deadline-days of 1 days leaves nothing")) << never.output;
}

TEST_F(Tune, longest_sequence_is_a_neighbour_of_one_that_does_not_fit) {
  const Json json = tuned(
      "--objective longest-sequence --devices 1 --global-batch 1 --strategy resident "
      "--set machine.gpu.memory_gb=1.2 --set plan.activations=keep");
  const Json& found = json["objective"];
  EXPECT_EQ(found["next"].get<double>(), found["value"].get<double>() + 1024);
  EXPECT_EQ(json["ranked"][0]["plan"]["sequence_length"], found["value"]);
  EXPECT_TRUE(found["proven"].get<bool>());
  EXPECT_TRUE(found["next_reason"].get<std::string>().starts_with("GPU memory"));
}

TEST_F(Tune, largest_model_is_as_large_as_capacity_says_at_least) {
  const std::string asked =
      "--devices 1 --global-batch 1 --strategy resident --set machine.gpu.memory_gb=1.5 "
      "--set model.hidden=256 ";
  const Json json = tuned("--objective largest-model " + asked);
  const Json predicted =
      Json::parse(bench
                      .run("predict --model tiny.json --machine hgx-h200-quad --sequence-length 64 "
                           "--max-model --stack ballast --json " +
                           asked + "2> /dev/null")
                      .output);
  const Json& found = json["objective"];
  EXPECT_GE(found["value"], predicted["max_model"]["parameters"]);
  EXPECT_GT(found["next"], found["value"]);
}

// --- Constraints ------------------------------------------------------------------------------

TEST_F(Tune, head_room_is_kept_free) {
  const Json json = tuned("--devices 1 --headroom-percent 50 --set machine.gpu.memory_gb=3");
  // Half of 3e9 bytes, less what is reserved.
  EXPECT_LT(json["ranked"][0]["gpu_bytes"].get<double>(), 1.5e9);
}

TEST_F(Tune, space_that_a_constraint_emptied_names_it_and_what_would_do) {
  const std::string small = "--devices 1 --strategy resident --set machine.gpu.memory_gb=1.1 ";
  const Outcome whole = tune(small);
  ASSERT_EQ(whole.code, 0) << whole.output;
  const Outcome outcome = tune(small + "--headroom-gb 0.09999 --json 2> /dev/null");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  const Json emptied = Json::parse(outcome.output)["emptied_by"];
  ASSERT_EQ(emptied.size(), 1u);
  EXPECT_EQ(emptied[0]["constraint"], "--headroom-gb");
  EXPECT_LT(emptied[0]["would_do"], emptied[0]["set"]);
  const std::string enough = std::to_string(emptied[0]["would_do"].get<double>());
  EXPECT_EQ(tune(small + "--headroom-gb " + enough).code, 0);

  const Outcome memory = tune("--devices 1 --strategy resident --set machine.gpu.memory_gb=1.0001");
  EXPECT_EQ(memory.code, 1);
  EXPECT_TRUE(memory.says("GPU memory of 1.0001 GB leaves nothing")) << memory.output;
  EXPECT_TRUE(memory.says("would do")) << memory.output;
  EXPECT_TRUE(memory.says("that do not: ")) << memory.output;

  const Outcome joules = tune("--devices 1 --watts-per-device 700 --most-joules-per-token 1e-9");
  EXPECT_EQ(joules.code, 1);
  EXPECT_TRUE(joules.says("--most-joules-per-token of 1e-09 J leaves nothing")) << joules.output;
}

// --- Studies ----------------------------------------------------------------------------------

TEST_F(Tune, frontier_holds_plans_that_no_other_beats) {
  const Json json = tuned(
      "--objective tokens-per-device --devices 1,2 --global-batch 16 --frontier "
      "--frontier-points 4");
  const Json& points = json["frontier"];
  ASSERT_GE(points.size(), 2u);
  for (const Json& a : points) {
    EXPECT_FALSE(a["label"].get<std::string>().empty());
    for (const Json& b : points) {
      const bool no_worse = a["devices"] <= b["devices"] &&
                            a["memory_bytes"]["hbm"] <= b["memory_bytes"]["hbm"] &&
                            a["tokens_per_s"] >= b["tokens_per_s"];
      EXPECT_FALSE(no_worse && &a != &b) << a.dump() << b.dump();
    }
  }
}

TEST_F(Tune, sensitivities_come_with_points_and_in_order) {
  const Json json = tuned("--devices 1 --strategy zero-offload --sensitivity");
  const Json& all = json["sensitivities"];
  ASSERT_GE(all.size(), 9u);
  double before = INFINITY;
  for (const Json& one : all) {
    EXPECT_LE(std::abs(one["elasticity"].get<double>()), before);
    before = std::abs(one["elasticity"].get<double>());
    ASSERT_EQ(one["points"].size(), 4u);
    for (const Json& point : one["points"]) {
      EXPECT_NEAR(point["value"], one["value"].get<double>() * point["factor"].get<double>(),
                  1e-9 * one["value"].get<double>());
      EXPECT_LE(point["step_time_s"], point["same_plan_step_time_s"]);
    }
  }
  EXPECT_FALSE(json["sensitivities_searched"].get<std::string>().empty());
}

TEST_F(Tune, ablation_adds_up_from_the_strategy_to_the_best) {
  const Json json = tuned("--devices 2 --ablation");
  const Json& ablation = json["ablation"];
  EXPECT_EQ(ablation["start"]["label"], "zero-offload");
  double seconds = ablation["start"]["step_time_s"];
  for (const Json& step : ablation["steps"]) {
    EXPECT_NE(step["from"], step["to"]);
    seconds -= step["gain_s"].get<double>();
  }
  EXPECT_NEAR(seconds, ablation["best_step_time_s"], 1e-9);
  EXPECT_EQ(ablation["best_step_time_s"], json["ranked"][0]["step_time_s"]);
  EXPECT_EQ(tuned("--devices 1 --ablation --ablation-from resident")["ablation"]["start"]["label"],
            "resident");
}

TEST_F(Tune, every_shipped_strategy_has_a_verdict) {
  const Json json = tuned("--devices 1");
  EXPECT_EQ(json["strategies"].size(), shipped_strategies().size());
  for (const Json& one : json["strategies"]) {
    EXPECT_EQ(one["fits"].get<bool>(), !one.contains("reason")) << one.dump();
  }
  const Json small = tuned("--devices 1 --set machine.gpu.memory_gb=1.0021");
  int refused = 0;
  for (const Json& one : small["strategies"]) {
    if (one["fits"].get<bool>()) continue;
    ++refused;
    EXPECT_FALSE(one["reason"].get<std::string>().empty());
    if (!one["misses"].is_null()) EXPECT_GT(one["misses"]["bytes"], 0);
  }
  EXPECT_GT(refused, 0);  // there is no NVMe
}

// 480 GB would hold the optimizer, 40 do not, and 8 GB of the GPU do not hold the rest.
TEST_F(Tune, what_a_strategy_lacks_is_what_predict_says) {
  const std::string on =
      "--model gpt2-xl --machine gh200-96gb-480gb --devices 1 --global-batch 8 "
      "--set machine.gpu.memory_gb=8 --set machine.cpu.memory_gb=30 ";
  const Json json =
      Json::parse(bench.run("tune --json --store s.db --deadline 5 " + on + "2> /dev/null").output);
  int compared = 0;
  for (const Json& one : json["strategies"]) {
    if (one["fits"].get<bool>() || one["misses"].is_null()) continue;
    const std::string name = one["name"];
    if (name != "resident" && name != "zero-offload" && name != "superoffload") continue;
    ++compared;
    const Json predicted = Json::parse(
        bench.run("predict --json --stack ballast --store s.db --strategy " + name + " " + on)
            .output);
    EXPECT_EQ(one["reason"], predicted["reason"]) << name;
    const bool gpu = one["misses"]["memory"] == "GPU memory";
    const auto of = [&](const std::string& key) {
      return predicted[key + (gpu ? "_gpu_bytes" : "_cpu_bytes")].get<int64_t>();
    };
    EXPECT_EQ(one["misses"]["bytes"], of("peak") - of("usable")) << name;
  }
  EXPECT_GE(compared, 2);
}

// Sixteen bytes a parameter are 25 GB of 12: what fits is split over the four, by the degrees and
// the stage that a strategy leaves open as in `predict`.
TEST_F(Tune, strategies_are_judged_in_every_layout) {
  const std::string on =
      "--model gpt2-xl --machine dgx-h100-80gb --devices 4 --global-batch 8 "
      "--set machine.gpu.memory_gb=12 ";
  const Json json = Json::parse(
      bench.run("tune --json --store s.db --deadline 60 " + on + "2> /dev/null").output);
  std::string names;
  for (const Json& one : json["strategies"]) {
    if (!names.empty()) names += ",";
    names += one["name"].get<std::string>();
  }
  const Json predicted =
      Json::parse(bench
                      .run("predict --json --stack ballast --store s.db --strategy " + names + " " +
                           on + "2> /dev/null")
                      .output)["cases"];
  ASSERT_EQ(predicted.size(), json["strategies"].size());
  int fitting = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const Json& one = json["strategies"][i];
    EXPECT_EQ(one["fits"], predicted[i]["fits"]) << one.dump();
    fitting += one["fits"].get<bool>() ? 1 : 0;
    if (one["name"] == "megatron") EXPECT_TRUE(one["fits"].get<bool>()) << one.dump();
    if (one["name"] == "ddp") EXPECT_FALSE(one["fits"].get<bool>());
  }
  EXPECT_GE(fitting, 2);
}

// Of 65,536 tokens on eight the rules leave parts of 2,048 tokens a device or more, on one stage,
// which idles for nobody. What the search makes of that layout is never faster than the best.
TEST_F(Tune, sppo_solver_stands_beside_the_best_plan) {
  const std::string on =
      "tune --store s.db --model llama-2-7b --machine hgx-a100-80gb --devices 8 --global-batch 1 "
      "--sequence-length 65536 --strategy ";
  const Json json = Json::parse(bench.run(on + "sppo --json 2> /dev/null").output);
  const Json& solver = json["sppo_solver"];
  EXPECT_EQ(solver["sequence"], 8);
  EXPECT_EQ(solver["pipeline"], 1);
  EXPECT_EQ(solver["subsequences"], 1);
  EXPECT_EQ(solver["idle_share"], 0.0);
  ASSERT_TRUE(solver["step_time_s"].is_number()) << solver.dump();
  EXPECT_GE(solver["step_time_s"], json["ranked"][0]["step_time_s"]);
  const Json& best = json["ranked"][0]["plan"];
  EXPECT_EQ(solver["is_best"],
            best["sequence"] == 8 && best["pipeline"] == 1 && best["subsequences"] == 1);
  // Nothing is said where sequences are not for the search to share.
  EXPECT_FALSE(
      Json::parse(bench.run(on + "seq1f1b --json 2> /dev/null").output).contains("sppo_solver"));
}

// What a search of Ballast's own plans found is what `predict` then says of it, as its framework.
TEST_F(Tune, best_plan_is_told_as_the_typical_framework_too) {
  const std::string on = "--model gpt2-xl --machine gh200-96gb-480gb --devices 1 --global-batch 8 ";
  const Json json = Json::parse(
      bench.run("tune --json --store s.db --deadline 2 --out best.json " + on + "2> /dev/null")
          .output);
  const Json predicted =
      Json::parse(bench.run("predict --json --store s.db --plan best.json 2> /dev/null").output);
  const Json& typical = json["typical"];
  EXPECT_EQ(typical["stack"], "typical");
  for (const char* key : {"stack", "fits", "reason", "step_time_s", "tokens_per_s", "confidence"}) {
    EXPECT_EQ(typical[key], predicted[key]) << key;
  }
  EXPECT_GT(typical["step_time_s"], json["ranked"][0]["step_time_s"]);
}

// The plan that the text explains is the one that JSON names and the page draws.
TEST_F(Tune, next_best_is_the_same_in_text_json_and_page) {
  const Outcome outcome = tune("--devices 1 --json 2> /dev/null");
  const Json json = Json::parse(outcome.output);
  const Json& next = json["next_best"];
  ASSERT_GT(next["rank"].get<int>(), 2) << "nothing ties, so that this test shows nothing";
  EXPECT_GT(next["step_time_s"].get<double>(), json["ranked"][0]["step_time_s"].get<double>());
  const auto why = [](const std::string& text) {
    const size_t begin = text.find("why the next-best loses");
    return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
  };
  const std::string told = why(tune("--devices 1").output);
  EXPECT_FALSE(told.empty());
  bench.write("tune.json", outcome.output);
  const Json page = Json::parse(
      bench.run("report --tune tune.json --model ./tiny.json --out page.html --json").output);
  EXPECT_EQ(page["why"], told);
}

// A file of another hand: its next plan is checked as its best is, and what it lacks is told on the
// page.
TEST_F(Tune, page_of_a_next_best_that_cannot_run_says_so) {
  Json json = Json::parse(tune("--devices 1 --json 2> /dev/null").output);
  ASSERT_TRUE(json["next_best"].is_object());
  json["next_best"]["plan"]["micro_batch"] = 1000003;
  bench.write("tune.json", json.dump());
  const Outcome outcome =
      bench.run("report --tune tune.json --model ./tiny.json --out page.html --json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(Json::parse(outcome.output)["missing"].get<std::string>().find("micro"),
            std::string::npos)
      << outcome.output.substr(0, 2000);
}

// As near as nobody can tell two plans apart (sim/engine/interval.h).
TEST_F(Tune, plans_that_cannot_be_told_apart_are_ties) {
  const Json json = tuned("--devices 1");
  const Json& ranked = json["ranked"];
  const double best = ranked[0]["step_time_s"];
  for (size_t i = 0; i < ranked.size(); ++i) {
    const bool near = ranked[i]["step_time_s"].get<double>() < (1 + told_apart_from()) * best;
    EXPECT_EQ(ranked[i]["tie"].get<bool>(), near && json["ties"] > 1) << i;
  }
}

// --- Bad input --------------------------------------------------------------------------------

TEST_F(Tune, bad_flags_are_refused_in_one_line) {
  refuses("--objective speed", {"--objective", "step-time"});
  refuses("--objective cost-per-token", {"--price-per-device-hour"});
  refuses("--objective devices-for-deadline --tokens 1e9", {"--deadline-days"});
  refuses("--tokens 1e9 --deadline-days 2", {"devices-for-deadline"});
  refuses("--price-per-device-hour -1", {"--price-per-device-hour"});
  refuses("--price-per-device-hour free", {"--price-per-device-hour"});
  refuses("--watts-per-device nan --most-joules-per-token 1", {"--watts-per-device"});
  refuses("--headroom-gb 9999", {"--headroom-gb", "GB"});
  for (const char* number : {"0", "-1", "nan", "inf", "soon"}) {
    refuses(std::string("--deadline ") + number, {"--deadline", "is no finite number above 0"});
  }
  refuses("--headroom-gb 1 --headroom-percent 1", {"--headroom"});
  refuses("--headroom-percent 101", {"--headroom-percent"});
  refuses("--devices 1,2", {"--devices", "tokens-per-device"});
  refuses("--devices 0", {"--devices"});
  refuses("--devices 1,x --objective tokens-per-device", {"--devices"});
  refuses("--devices 4..1 --objective tokens-per-device", {"--devices"});
  refuses("--global-batch 8..64", {"--global-batch"});
  refuses("--global-batch two", {"--global-batch"});
  refuses("--devices 2,4 --most-devices 1 --objective tokens-per-device",
          {"--most-devices 1", "the least that would do is 2"});
  refuses("--frontier-points 3", {"--frontier"});
  refuses("--frontier --frontier-points 0", {"--frontier-points"});
  refuses("--ablation-from resident", {"--ablation"});
  refuses("--objective largest-model --frontier", {"largest-model"});
  refuses("--objective largest-model --devices 1,2", {"--devices"});
}

TEST_F(Tune, ablation_from_what_is_no_strategy_is_refused) {
  const Outcome outcome = tune("--devices 1 --ablation --ablation-from nothing 2>&1 > /dev/null");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_TRUE(outcome.says("nothing")) << outcome.output;
}

}  // namespace
}  // namespace ballast
