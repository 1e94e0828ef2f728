// Questions as a buyer or an owner asks them: models and machines by the names that people use,
// machines that nobody shipped, offers side by side, and what a configuration says that is not
// followed.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// The JSON of an output whose other stream was thrown away.
Json answer_of(const Workbench& bench, const std::string& arguments) {
  const Outcome outcome = bench.run(arguments + " --json 2> /dev/null");
  return Json::parse(outcome.output, nullptr, false);
}

void expect_refusal(const Workbench& bench, const std::string& arguments,
                    const std::vector<std::string>& words) {
  const Outcome outcome = bench.run(arguments);
  EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.output;
  EXPECT_EQ(outcome.lines(), 1) << outcome.output;
  for (const std::string& word : words) EXPECT_TRUE(outcome.says(word)) << outcome.output;
}

// Without a cache of the Hub, whatever the machine of the test has.
const std::string kNoHub = "HF_HUB_CACHE=none $BALLAST ";
const std::string kFixed =
    " --global-batch 2 --micro-batch 2 --sequence-length 512 --set plan.activations=keep "
    "--set plan.weights=stationary --set plan.optimizer.gpu_buckets=0 --strategy superoffload ";

// --- Names --------------------------------------------------------------------------------------

TEST(Buyer, an_id_of_hugging_face_and_a_part_of_a_machine_are_found_with_a_note) {
  const Workbench bench;
  const Outcome outcome =
      bench.shell(kNoHub + "predict --model openai-community/GPT2 --machine 4090" + kFixed);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("gpt2 on rtx-4090-pcie")) << outcome.output;
  EXPECT_TRUE(outcome.says("--model openai-community/GPT2: taken as the shipped gpt2 ("))
      << outcome.output;
  EXPECT_TRUE(outcome.says("models/gpt2.json)")) << outcome.output;
  EXPECT_TRUE(outcome.says("--machine 4090: taken as the shipped rtx-4090-pcie ("))
      << outcome.output;
  const Outcome quiet = bench.shell(
      kNoHub + "predict --model openai-community/GPT2 --machine 4090" + kFixed + "2> /dev/null");
  EXPECT_FALSE(quiet.says("taken as")) << "the note goes to the error output";
}

// A build of Ballast is a folder of that name, and a model's weights may lie in one of its name.
TEST(Buyer, a_folder_of_the_name_of_something_shipped_is_not_taken_for_it) {
  const Workbench bench;
  const Outcome told = bench.shell(
      "mkdir ballast gpt2 dgx-h100-80gb && "
      "$BALLAST predict --model gpt2 --machine dgx-h100-80gb --stack ballast");
  EXPECT_EQ(told.code, 0) << told.output;
}

TEST(Buyer, a_cache_of_the_hub_goes_before_what_is_shipped) {
  const Workbench bench;
  bench.write_tiny_model();
  const Outcome outcome = bench.shell(
      "mkdir -p hub/models--openai-community--gpt2/snapshots/abc && "
      "cp tiny.json hub/models--openai-community--gpt2/snapshots/abc/config.json && "
      "HF_HUB_CACHE=hub $BALLAST models show openai-community/gpt2");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("snapshots/abc/config.json")) << outcome.output;
  EXPECT_TRUE(outcome.says("\"hidden\": 32")) << outcome.output;
}

TEST(Buyer, names_that_may_be_several_or_none_are_refused_with_the_nearest) {
  const Workbench bench;
  expect_refusal(bench, "predict --model gpt2 --machine h100",
                 {"did you mean", "'h100-sxm-80gb'", "'dgx-h100-80gb'"});
  expect_refusal(bench, "predict --model gpt2 --machine gh200",
                 {"'alps-gh200-quad'", "'gh200-96gb-480gb'"});
  expect_refusal(bench, "predict --model gpt2 --machine h100-sxm-80gb --strategy zero2",
                 {"'zero-2'"});
  expect_refusal(bench, "predict --model gpt2 --machine h100-sxm-80gb --stack deepspeed",
                 {"'deepspeed-2024'", "'deepspeed-2025'", "'deepspeed-gh200'"});
}

// --- Said aloud ---------------------------------------------------------------------------------

TEST(Buyer, what_a_configuration_says_and_nothing_follows_is_a_note) {
  const Workbench bench;
  const std::string asked = "--model gpt2 --machine gh200-96gb-480gb" + kFixed;
  const std::string note = "gpt2 is trained with a dropout of 0.1";
  for (const std::string verb : {"predict ", "compare ", "tune --deadline 20 "}) {
    const Outcome text = bench.run(verb + asked);
    EXPECT_TRUE(text.says("note: " + note)) << verb << text.output;
    const Json json = answer_of(bench, verb + asked);
    ASSERT_FALSE(json["notes"].empty()) << verb;
    EXPECT_EQ(json["notes"][0].get<std::string>().find(note), 0U) << verb;
    // What is left are values of the strategy that a search did not keep.
    for (size_t i = 1; i < json["notes"].size(); ++i) {
      EXPECT_EQ(json["notes"][i].get<std::string>().find("the strategy gives"), 0U) << verb;
    }
  }
  EXPECT_TRUE(answer_of(bench, "predict " + asked + " --set model.dropout=0")["notes"].empty());
}

// Of 50 MB nothing of gpt2's 124M parameters fits, and no sequence either.
TEST(Buyer, notes_are_told_of_what_does_not_fit_too) {
  const Workbench bench;
  const std::string big =
      " --model gpt2 --machine gh200-96gb-480gb --set machine.gpu.memory_gb=1.05 --global-batch 1 "
      "--micro-batch 1 --set plan.activations=keep ";
  for (const std::string verb : {"predict --max-sequence", "tune --deadline 20"}) {
    const Outcome text = bench.run(verb + big);
    EXPECT_EQ(text.code, 1) << verb << text.output;
    EXPECT_TRUE(text.says("note: gpt2 is trained with a dropout of 0.1")) << verb << text.output;
    EXPECT_EQ(answer_of(bench, verb + big)["notes"].size(), 1U) << verb;
  }
}

// At 8,192 tokens a window of 4,096 leaves w (2 S - w) / S^2 = 3/4 of the causal half.
TEST(Buyer, a_window_is_predicted_as_it_is) {
  const Workbench bench;
  const std::string asked =
      "predict --model mistral-7b --machine gh200-96gb-480gb --stack ideal --global-batch 1 "
      "--micro-batch 1 --set plan.weights=stationary --set plan.activations=recompute ";
  const auto attention = [&](const std::string& more) {
    double seconds = 0;
    const Json json = answer_of(bench, asked + more);
    for (const Json& kind : json["kinds"]) {
      if (kind["kind"].get<std::string>().starts_with("attention")) {
        seconds += kind["seconds"].get<double>();
      }
    }
    return seconds;
  };
  const double windowed = attention("--sequence-length 8192");
  const double full = attention("--sequence-length 8192 --set model.sliding_window=0");
  EXPECT_GT(full, 0);
  EXPECT_NEAR(windowed / full, 0.75, 0.01) << "but for the start of a kernel";
  EXPECT_EQ(answer_of(bench, asked + "--sequence-length 8192")["notes"].size(), 1U);
  EXPECT_TRUE(answer_of(bench, asked + "--sequence-length 4096")["notes"].empty());
}

TEST(Buyer, positions_beyond_those_of_the_model_are_told) {
  const Workbench bench;
  const std::string asked =
      "predict --model llama-3-8b --machine dgx-h100-80gb --devices 8 --strategy zero-3 "
      "--global-batch 8 --micro-batch 1 --set plan.activations=recompute ";
  EXPECT_EQ(answer_of(bench, asked + "--sequence-length 16384")["notes"].size(), 1U);
  EXPECT_TRUE(answer_of(bench, asked + "--sequence-length 8192")["notes"].empty());
}

TEST(Buyer, train_refuses_by_name_to_train_another_model_and_goes_on_when_told) {
  const Workbench bench;
  bench.write_tiny_model();
  bench.write_store();
  bench.write("text.txt", std::string(4000, 'a'));
  const std::string train =
      "train --store here.db --data text.txt --global-batch 2 --steps 1 --sequence-length 32 ";
  Json gpt = Json::parse(bench.read("tiny.json"));
  gpt["resid_pdrop"] = 0.1;
  bench.write("dropping.json", gpt.dump());
  expect_refusal(bench, train + "--model dropping.json",
                 {"model.dropout", "0.1", "--set model.dropout=0"});
  EXPECT_EQ(bench.run(train + "--model dropping.json --set model.dropout=0").code, 0);

  Json llama = {
      {"model_type", "mistral"},  {"num_hidden_layers", 2},   {"hidden_size", 32},
      {"intermediate_size", 64},  {"num_attention_heads", 2}, {"vocab_size", 256},
      {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 16},
      {"sliding_window", nullptr}};
  bench.write("short.json", llama.dump());
  expect_refusal(bench, train + "--model short.json",
                 {"model.max_positions", "32", "16", "--set model.max_positions=32"});
  EXPECT_EQ(bench.run(train + "--model short.json --set model.max_positions=32").code, 0);

  llama["max_position_embeddings"] = 64;
  llama["sliding_window"] = 8;
  bench.write("window.json", llama.dump());
  EXPECT_EQ(bench.run(train + "--model window.json").code, 0) << "it is trained as it is";
  EXPECT_EQ(bench.run(train + "--model window.json --set model.sliding_window=0").code, 0);
  llama["sliding_window"] = 32;
  llama["quantization_config"] = {{"quant_method", "gptq"}};
  bench.write("quantized.json", llama.dump());
  expect_refusal(bench, train + "--model quantized.json", {"model.quantization", "gptq"});
  EXPECT_EQ(bench.run(train + "--model quantized.json --set model.quantization=none").code, 0)
      << "a window that covers the sequence is none";
}

// --- Machines that nobody shipped ---------------------------------------------------------------

TEST(Buyer, eight_4090_are_a_machine_of_one_line_that_says_what_it_assumed) {
  const Workbench bench;
  const Outcome made = bench.run(
      "machines --new box.json --gpu rtx-4090 --gpus 8 --link pcie4x16 --network none "
      "--cpu-memory 256GB");
  EXPECT_EQ(made.code, 0) << made.output;
  const Json box = Json::parse(bench.read("box.json"));
  EXPECT_EQ(box["name"], "box");
  EXPECT_EQ(box["devices"], 8);
  EXPECT_EQ(box["devices_per_node"], 8);
  EXPECT_TRUE(box["network"].is_null());
  EXPECT_EQ(box["cpu"]["memory_gb"]["value"], 32) << "256 GB for eight";
  // 78 % of 32 GB/s; GPUs without wires of their own reach each other through the CPU: half.
  EXPECT_NEAR(box["link"]["host_to_device"]["gb_per_s"].back().get<double>(), 24.96, 1e-9);
  EXPECT_NEAR(box["node"]["bandwidth_gb_per_s"]["value"].get<double>(), 12.48, 1e-9);
  for (const char* key : {"link", "cpu.cores", "node"}) {
    EXPECT_TRUE(made.says(std::string("\n  ") + key)) << made.output;
  }
  EXPECT_TRUE(
      box["node"]["bandwidth_gb_per_s"]["source"].get<std::string>().starts_with("assumed"));
  EXPECT_FALSE(box["cpu"]["memory_gb"]["source"].get<std::string>().starts_with("assumed"));
  const Outcome asked = bench.run(
      "predict --model gpt2 --machine ./box.json --devices 8 --global-batch 16 --strategy zero-2 "
      "--micro-batch 2 --sequence-length 512 --set plan.activations=keep");
  EXPECT_EQ(asked.code, 0) << asked.output;
  EXPECT_TRUE(asked.says("gpt2 on box, 8 devices")) << asked.output;
  // A second node needs wires.
  expect_refusal(bench, "machines --new two.json --gpu rtx-4090 --gpus 8 --nodes 2",
                 {"--nodes 2", "--network"});
  EXPECT_EQ(
      bench.run("machines --new two.json --gpu rtx-4090 --gpus 8 --nodes 2 --network 100gbit").code,
      0);
  // 96 % of 12.5 GB/s.
  const Json two = Json::parse(bench.read("two.json"));
  EXPECT_NEAR(two["network"]["bandwidth_gb_per_s"]["value"].get<double>(), 12, 1e-9);
}

// Twice the bandwidth of the CPU's memory: Adam on the CPU, which memory bounds, is twice as fast.
TEST(Buyer, bandwidth_of_cpu_memory_is_a_flag_of_a_new_machine) {
  const Workbench bench;
  const std::string asked = "machines --new m.json --gpu rtx-4090 --gpus 2 ";
  ASSERT_EQ(bench.run(asked).code, 0);
  const Json plain = Json::parse(bench.read("m.json"))["cpu"];
  const Outcome made = bench.run(asked + "--cpu-bandwidth 279.6");
  ASSERT_EQ(made.code, 0) << made.output;
  const Json cpu = Json::parse(bench.read("m.json"))["cpu"];
  const Json& rate = cpu["memory_bandwidth_gb_per_s"];
  EXPECT_NEAR(rate["value"].get<double>(), 139.8, 1e-9) << "of each of two GPUs";
  EXPECT_TRUE(rate["source"].get<std::string>().starts_with("given"));
  const auto adam = [](const Json& row) {
    return row["adam"]["cpu-adam"]["parameters_per_s"][0].get<double>();
  };
  EXPECT_NEAR(adam(cpu) / adam(plain),
              139.8 / plain["memory_bandwidth_gb_per_s"]["value"].get<double>(), 1e-9);
  EXPECT_TRUE(cpu["adam"]["cpu-adam"]["source"].get<std::string>().starts_with("assumed"));
  EXPECT_FALSE(made.says("cpu.memory_bandwidth_gb_per_s:")) << "it was said, not assumed";
}

TEST(Buyer, a_new_machine_from_every_shipped_gpu_can_be_asked) {
  const Workbench bench;
  for (const Json& machine : answer_of(bench, "machines")) {
    const std::string gpu = machine["gpu"];
    const Outcome made = bench.run("machines --new m.json --gpu '" + gpu + "' --gpus 2");
    EXPECT_EQ(made.code, 0) << gpu << made.output;
    EXPECT_EQ(bench.run("machines show ./m.json").code, 0) << gpu;
  }
}

TEST(Buyer, machines_that_contradict_themselves_are_refused) {
  const Workbench bench;
  const std::string fresh = "machines --new m.json ";
  expect_refusal(bench, fresh, {"--gpu"});
  expect_refusal(bench, fresh + "--gpu rtx-5090", {"rtx-5090", "RTX 4090"});
  expect_refusal(bench, fresh + "--gpu a100", {"several", "40 GB", "80 GB"});
  expect_refusal(bench, fresh + "--gpu rtx-4090 --link pcie9x16", {"pcie9x16", "pcie4x16"});
  expect_refusal(bench, fresh + "--gpu rtx-4090 --link c2c", {"c2c"});
  expect_refusal(bench, fresh + "--gpu rtx-4090 --network fast", {"fast"});
  expect_refusal(bench, fresh + "--gpu rtx-4090 --cpu-memory 256", {"256GB"});
  expect_refusal(bench, "machines --new m.txt --gpu rtx-4090", {".json"});
  expect_refusal(bench, "machines --gpus 2", {"--gpus", "--new"});
  EXPECT_FALSE(bench.exists("m.json"));
}

TEST(Buyer, a_machine_file_of_one_node_needs_no_network) {
  const Workbench bench;
  Json machine = Json::parse(bench.run("machines show rtx-4090-pcie").output);
  machine.erase("network");
  bench.write("alone.json", machine.dump());
  EXPECT_EQ(bench.run("machines show ./alone.json").code, 0);
  machine["network"] = "none";
  bench.write("none.json", machine.dump());
  EXPECT_EQ(bench.run("machines show ./none.json").code, 0);
  machine["devices"] = 2;
  bench.write("two.json", machine.dump());
  expect_refusal(bench, "machines show ./two.json", {"network", "several nodes"});
}

TEST(Buyer, machines_are_listed_with_what_one_asks_of_them) {
  const Workbench bench;
  const Outcome text = bench.run("machines --store none.db");
  for (const char* word : {"GPUs", "GPU memory", "CPU memory", "link", "network", "c2c", "none"}) {
    EXPECT_TRUE(text.says(word)) << text.output;
  }
  for (const Json& machine : answer_of(bench, "machines --store none.db")) {
    if (machine["name"] != "rtx-4090-pcie") continue;
    EXPECT_EQ(machine["devices"], 1);
    EXPECT_TRUE(machine["network_gb_per_s"].is_null());
    EXPECT_NEAR(machine["link_gb_per_s"].get<double>(), 25, 1e-9);
  }
}

// --- Offers -------------------------------------------------------------------------------------

const std::string kOffers =
    "compare --model gpt2 --global-batch 8 --micro-batch 1 --sequence-length 512 "
    "--set plan.activations=keep --strategy zero-2 --offer "
    "'alps-gh200-quad x4 @ 3.60/GPU-h, dgx-h100-80gb x8 @ 2.40, 4090 x1 @ 0.36, 4090 x8 @ 0.30' "
    "--tokens 1.5B ";

// P an hour for each of N GPUs at R tokens a second: N P / 3600 / R for a token; T tokens take T /
// R seconds.
TEST(Buyer, offers_pair_machine_count_and_price_and_tell_days_and_cost_of_a_run) {
  const Workbench bench;
  const Json json = answer_of(bench, kOffers + "--csv cells.csv --html page.html");
  ASSERT_EQ(json["cells"].size(), 4U);
  EXPECT_EQ(json["metric"], "cost_per_token") << "who names prices asks for the cheapest";
  EXPECT_EQ(json["run_tokens"], 1.5e9);
  const double prices[] = {3.6, 2.4, 0.36};
  const int64_t counts[] = {4, 8, 1};
  for (size_t i = 0; i < 3; ++i) {
    const Json& cell = json["cells"][i];
    ASSERT_TRUE(cell["fits"].get<bool>()) << cell["reason"];
    const double rate = cell["tokens_per_s"].get<double>();
    const double spent = prices[i] * static_cast<double>(counts[i]) / 3600 / rate;
    EXPECT_EQ(cell["plan"]["devices"], counts[i]);
    EXPECT_NEAR(cell["cost_per_million_tokens"].get<double>(), spent * 1e6, 1e-9 * spent * 1e6);
    EXPECT_NEAR(cell["run_cost"].get<double>(), spent * 1.5e9, 1e-9 * spent * 1.5e9);
    EXPECT_NEAR(cell["run_days"].get<double>(), 1.5e9 / rate / 86400, 1e-9);
    EXPECT_EQ(cell["price_per_device_hour"], prices[i]);
  }
  const Json& last = json["cells"][3];
  EXPECT_FALSE(last["fits"].get<bool>()) << "the shipped 4090 is alone";
  EXPECT_EQ(last["obstacle"], "devices");
  EXPECT_TRUE(last["run_cost"].is_null());
  const std::string csv = bench.read("cells.csv");
  EXPECT_NE(csv.find("run_days,run_cost,price_per_device_hour,cheapest,"
                     "level_price_per_device_hour,level_with,told_apart,power_watts,"
                     "energy_kwh_per_million_tokens,run_energy_kwh\r\n"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find("alps-gh200-quad x4 @ 3.60"), std::string::npos) << csv;
  EXPECT_NE(bench.read("page.html").find("run_days"), std::string::npos);
}

TEST(Buyer, offers_are_a_table_of_what_a_buyer_asks) {
  const Workbench bench;
  const Outcome text = bench.run(kOffers);
  EXPECT_EQ(text.code, 0) << text.output;
  for (const char* word :
       {"fits", "tokens/s", "price of 1M tokens", "days of 1.5B", "price of it", "energy at most",
        "alps-gh200-quad: not known", "NVIDIA H100 SXM data", "stays the cheapest up to",
        "draws level with", "rtx-4090-pcie x8 @ 0.30", "no: devices", "--offer 4090: taken as"}) {
    EXPECT_TRUE(text.says(word)) << word << "\n" << text.output;
  }
}

// The cheapest keeps its place up to the price that makes its tokens as dear as the next one's; the
// others take it at the price that makes theirs as cheap.
TEST(Buyer, an_offer_at_its_level_price_costs_what_its_rival_does) {
  const Workbench bench;
  const Json json = answer_of(bench, kOffers);
  double least = 1e9;
  for (const Json& cell : json["cells"]) {
    if (cell["fits"].get<bool>())
      least = std::min(least, cell["cost_per_million_tokens"].get<double>());
  }
  int cheapest = 0;
  for (const Json& cell : json["cells"]) {
    if (!cell["fits"].get<bool>()) {
      EXPECT_TRUE(cell["level_price_per_device_hour"].is_null());
      continue;
    }
    const double cost = cell["cost_per_million_tokens"];
    const double ratio = cell["level_price_per_device_hour"].get<double>() /
                         cell["price_per_device_hour"].get<double>();
    if (!cell["cheapest"].get<bool>()) {
      EXPECT_NEAR(ratio * cost, least, 1e-9 * least) << cell["at"];
      continue;
    }
    ++cheapest;
    EXPECT_EQ(cost, least);
    EXPECT_GE(ratio, 1);
    EXPECT_NE(cell["level_with"], cell["at"]["offer"]);
  }
  EXPECT_EQ(cheapest, 1);
}

// 700 W for each of eight H100 at R tokens a second: 5600 / R J a token; of a GH200 in Alps nobody
// says the power.
TEST(Buyer, energy_is_at_most_that_of_every_gpu_at_its_power) {
  const Workbench bench;
  const Json json = answer_of(bench, kOffers);
  EXPECT_TRUE(json["cells"][0]["power_watts"].is_null());
  EXPECT_TRUE(json["cells"][0]["run_energy_kwh"].is_null());
  const Json& h100 = json["cells"][1];
  EXPECT_EQ(h100["power_watts"], 700);
  const double joules = 8 * 700 / h100["tokens_per_s"].get<double>();
  EXPECT_NEAR(h100["run_energy_kwh"].get<double>(), joules * 1.5e9 / 3.6e6, 1e-6);
  EXPECT_NEAR(h100["energy_kwh_per_million_tokens"].get<double>(), joules * 1e6 / 3.6e6, 1e-9);
}

TEST(Buyer, offers_that_say_too_little_or_too_much_are_refused) {
  const Workbench bench;
  const std::string asked = "compare --model gpt2 --strategy zero-2 ";
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb @ 2'", {"how many GPUs"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x0 @ 2'", {"number of GPUs"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8 @ free'", {"not a price"});
  expect_refusal(bench, asked + "--offer 'x8 @ 2'", {"GPUs"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8 @ 2,'", {"--offer"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8 @ 2,dgx-h100-80gb x8 @ 2'", {"twice"});
  expect_refusal(bench, asked + "--offer 'h100 x8 @ 2'", {"did you mean"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8' --machine h100-sxm-80gb",
                 {"--machine is given too"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8' --set plan.devices=4",
                 {"--offer is given too"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8' --metric cost_per_token",
                 {"has no price"});
  expect_refusal(bench, asked + "--offer 'dgx-h100-80gb x8' --tokens much", {"--tokens 'much'"});
  expect_refusal(bench, asked + "--machine h100-sxm-80gb --price-per-device-hour dgx-h100-80gb=2",
                 {"dgx-h100-80gb is not compared"});
}

}  // namespace
}  // namespace ballast
