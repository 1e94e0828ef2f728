// What the verbs print and write: JSON with the promised keys, traces that a viewer accepts,
// pages whose text cannot become markup, and a clean end on Ctrl-C.
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/report/page.h"
#include "cli/text/tables.h"
#include "cli/verbs/verbs.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kPrinted = "--model gpt2 --machine gh200-96gb-480gb --sequence-length 512 ";

TEST(Output, every_verb_has_help_and_json) {
  const Workbench bench;
  for (const Verb& verb : verbs()) {
    const Outcome outcome = bench.run(std::string(verb.name) + " --help");
    EXPECT_EQ(bench.run(std::string(verb.name) + " -h").output, outcome.output);
    EXPECT_EQ(outcome.code, 0) << verb.name;
    EXPECT_TRUE(outcome.says("--json")) << verb.name;
    EXPECT_TRUE(outcome.says("--help")) << verb.name;
  }
}

// A lane of a hundred stages is one entry of the line; JSON has each of them.
// What a pod or a shell has of torchrun's variables starts no ranks: the second of two would print
// nothing, as ranks of MPI but the first do.
TEST(Output, variables_of_torch_silence_nobody) {
  const Workbench bench;
  const std::string line = "predict --model gpt2 --machine gh200-96gb-480gb --global-batch 8";
  const Outcome plain = bench.run(line);
  ASSERT_EQ(plain.code, 0) << plain.output;
  const Outcome set = bench.shell("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 $BALLAST " + line + " 2>&1");
  EXPECT_EQ(set.code, 0) << set.output;
  EXPECT_EQ(set.output, plain.output);
}

TEST(Output, lanes_in_use_are_as_many_as_their_kinds_for_any_number_of_stages) {
  const Workbench bench;
  const std::string ask =
      "predict --model gpt2-xl --machine dgx-h100-80gb --strategy megatron --micro-batch 1 "
      "--global-batch 8 --devices 8 --tensor 1 --pipeline 4";
  std::map<std::string, std::pair<double, double>> of_kinds;
  const Json json = Json::parse(bench.run(ask + " --json").output);
  for (const Json& lane : json["lanes"]) {
    const std::string name = lane["lane"];
    const double percent = 100 * lane["share"].get<double>();
    auto [known, is_new] =
        of_kinds.try_emplace(name.substr(name.find(' ') + 1), std::pair{percent, percent});
    if (is_new) continue;
    known->second.first = std::min(known->second.first, percent);
    known->second.second = std::max(known->second.second, percent);
  }
  ASSERT_TRUE(of_kinds.contains("compute"));
  EXPECT_LT(of_kinds.at("compute").first, of_kinds.at("compute").second);
  const std::string text = bench.run(ask).output;
  const size_t begin = text.find("lanes in use");
  ASSERT_NE(begin, std::string::npos);
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  EXPECT_EQ(static_cast<size_t>(std::count(line.begin(), line.end(), '%')), of_kinds.size())
      << line;
  for (const auto& [kind, range] : of_kinds) {
    const std::string least = fmt::format("{:.0f}", range.first);
    const std::string most = fmt::format("{:.0f}", range.second);
    const std::string shown = least == most ? least : least + " to " + most;
    EXPECT_NE(line.find(fmt::format(" {} {} %", kind, shown)), std::string::npos) << line;
  }
  EXPECT_NE(line.find("(of 4 stages)"), std::string::npos) << line;
}

TEST(Output, every_shipped_thing_can_be_listed_and_shown) {
  const Workbench bench;
  for (const std::string verb : {"machines", "models", "strategies"}) {
    const Json list = Json::parse(bench.run(verb + " --json").output);
    ASSERT_FALSE(list.empty());
    for (const Json& entry : list) {
      const Outcome shown = bench.run(verb + " show " + entry["name"].get<std::string>());
      EXPECT_EQ(shown.code, 0);
      EXPECT_TRUE(Json::parse(shown.output).is_object());
    }
  }
}

TEST(Output, prediction_has_the_keys_of_the_design) {
  const Workbench bench;
  const Json json = Json::parse(bench.run("predict --json " + kPrinted).output);
  for (const char* key : {"step_time_s", "tokens_per_s", "tokens_per_s_per_device",
                          "tflops_per_device", "hardware_tflops_per_device", "mfu_percent", "fits",
                          "reason", "peak_gpu_bytes", "peak_cpu_bytes", "peak_nvme_bytes",
                          "holders", "lanes", "longest_path", "provenance", "plan"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  // 8 sequences of 512 tokens a step.
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * json["step_time_s"].get<double>(), 4096, 1e-6);
  const Json& shares = json["provenance"];
  EXPECT_NEAR(shares["measured"].get<double>() + shares["interpolated"].get<double>() +
                  shares["roofline"].get<double>(),
              1, 1e-9);
  EXPECT_FALSE(json["plan"].dump().find("auto") != std::string::npos);
}

// Sums are those of the plan's step; what is drawn is a shorter one, and both the text and the page
// say so.
TEST(Output, a_long_step_says_that_a_shorter_one_is_drawn) {
  const Workbench bench;
  // As Ballast runs it the GPU is busy all along; a framework's host would be busier.
  const std::string asked = kPrinted + "--stack ballast --global-batch 2048 --micro-batch 1 ";
  const Json json = Json::parse(bench.run("predict --json " + asked).output);
  ASSERT_TRUE(json.contains("repetition"));
  EXPECT_EQ(json["repetition"]["micro_batches"], 2048);
  EXPECT_LT(json["repetition"]["simulated_micro_batches"], 200);
  const double step = json["step_time_s"].get<double>();
  double busiest = 0;
  for (const Json& lane : json["lanes"]) {
    const double busy = lane["busy_s"].get<double>();
    EXPECT_NEAR(lane["share"].get<double>(), busy / step, 1e-9);
    busiest = std::max(busiest, busy);
  }
  EXPECT_GT(busiest, 0.9 * step);
  EXPECT_LE(busiest, step * (1 + 1e-9));
  EXPECT_TRUE(bench.run("predict " + asked).says("micro-batches; the plan's has 2048"));
  EXPECT_EQ(bench.run("report --out page.html " + asked).code, 0);
  EXPECT_NE(bench.read("page.html").find("\"repetition\":{"), std::string::npos);
}

TEST(Output, lists_become_one_row_for_each_combination) {
  const Workbench bench;
  const Json json =
      Json::parse(bench
                      .run("predict --json --model gpt2 --machine alps-gh200-quad --devices 1,4 "
                           "--strategy resident,zero-offload --sequence-length 512 2> /dev/null")
                      .output);
  ASSERT_EQ(json["cases"].size(), 4u);
  EXPECT_EQ(json["cases"][2]["devices"], 4);
  EXPECT_EQ(json["cases"][3]["strategy"], "zero-offload");
}

// Complete events of one thread must not overlap, or viewers draw nonsense.
TEST(Output, trace_names_its_lanes_and_their_spans_do_not_overlap) {
  const Workbench bench;
  ASSERT_EQ(bench.run("predict --trace trace.json " + kPrinted).code, 0);
  const Json trace = Json::parse(bench.read("trace.json"));
  std::set<std::pair<int, int>> named;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> spans;
  for (const Json& event : trace["traceEvents"]) {
    const std::pair<int, int> thread = {event["pid"], event["tid"]};
    if (event["ph"] == "M" && event["name"] == "thread_name") named.insert(thread);
    if (event["ph"] == "X") spans[thread].emplace_back(event["ts"], event["dur"]);
  }
  ASSERT_FALSE(spans.empty());
  for (auto& [thread, list] : spans) {
    EXPECT_TRUE(named.contains(thread)) << thread.second;
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) {
      EXPECT_GE(list[i].first, list[i - 1].first + list[i - 1].second - 1e-5);
    }
  }
}

TEST(Output, trace_names_what_each_operation_waited_for) {
  const Workbench bench;
  ASSERT_EQ(bench.run("predict --trace trace.json " + kPrinted).code, 0);
  const Json trace = Json::parse(bench.read("trace.json"));
  std::map<std::pair<int, int>, Json> events;  // by operation and step
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    events[{event["args"]["operation"], event["args"]["step"]}] = event;
  }
  int named = 0;
  for (const auto& [key, event] : events) {
    const Json& args = event["args"];
    if (!args.contains("waited_for")) continue;
    ++named;
    const Json& last = events.at({args["waited_for_operation"], args["waited_for_step"]});
    EXPECT_EQ(last["name"], args["waited_for"]);
    EXPECT_LE(last["ts"].get<double>() + last["dur"].get<double>(),
              event["ts"].get<double>() + 1e-5);
  }
  // All but what was first on its lane in the recorded steps, and waited for nothing else.
  EXPECT_GT(named, static_cast<int>(events.size()) - 10);
}

// The commit of the sources as they were built, in a header that is written only where it changes.
TEST(Output, version_names_the_commit_of_the_build) {
  const Workbench bench;
  const std::string commit =
      "git -c user.name=a -c user.email=a@b -C sources commit -q -m one "
      "--allow-empty && git -C sources rev-parse --short HEAD";
  const std::string made = "cmake -DSOURCE=sources -DHEADER=\"$PWD/commit.h\" -P '" +
                           std::string(BALLAST_SOURCE_DIR) + "/scripts/commit.cmake'";
  const auto holds = [&](const Outcome& first) {
    const std::string hash = first.output.substr(0, first.output.find('\n'));
    return hash.size() >= 4 && bench.read("commit.h").find('"' + hash + '"') != std::string::npos;
  };
  ASSERT_EQ(bench.shell("git init -q sources").code, 0);
  const Outcome first = bench.shell(commit);
  ASSERT_EQ(bench.shell(made).code, 0);
  EXPECT_TRUE(holds(first)) << first.output << bench.read("commit.h");
  const std::string untouched =
      " && test \"$(stat -c %Y commit.h)\" = \"$(date -d 2001-01-01 +%s)\"";
  EXPECT_EQ(bench.shell("touch -d 2001-01-01 commit.h && " + made + untouched).code, 0);
  const Outcome second = bench.shell("sleep 1; " + commit);
  EXPECT_NE(bench.shell(made + untouched).code, 0);
  EXPECT_TRUE(holds(second)) << second.output << bench.read("commit.h");
  EXPECT_FALSE(holds(first));
  // The program was built with the header beside it.
  const Outcome header = bench.shell("cat '" BALLAST_BINARY_DIR "/generated/commit.h'");
  const Outcome version = bench.run("--version");
  const size_t at = version.output.rfind(' ');
  ASSERT_NE(at, std::string::npos) << version.output;
  EXPECT_TRUE(
      header.says('"' + version.output.substr(at + 1, version.output.size() - at - 2) + '"'))
      << header.output << version.output;
}

TEST(Output, graph_says_what_its_columns_mean_before_their_lines) {
  const Workbench bench;
  const std::string text = bench.run("graph " + kPrinted).output;
  const size_t legend = text.find("\nafter: ");
  ASSERT_NE(legend, std::string::npos) << text.substr(0, 300);
  EXPECT_LT(legend, text.find("id   lane"));
}

TEST(Output, graph_can_be_replayed_from_its_json) {
  const Workbench bench;
  const Json graph = Json::parse(bench.run("graph --json " + kPrinted).output);
  const auto ops = static_cast<int64_t>(graph["ops"].size());
  const auto capacities = static_cast<int64_t>(graph["capacities"].size());
  ASSERT_GT(ops, 100);
  for (int64_t i = 0; i < ops; ++i) {
    const Json& op = graph["ops"][static_cast<size_t>(i)];
    EXPECT_EQ(op["id"], i);
    EXPECT_GE(op["alone_s"].get<double>(), 0);
    for (const Json& demand : op["demands"]) EXPECT_LT(demand["capacity"], capacities);
    for (const Json& edge : op["predecessors"]) {
      // An edge within a step points back; one to an earlier step may point anywhere.
      EXPECT_LT(edge["id"], edge["steps_ahead"] == 0 ? i : ops);
    }
  }
}

TEST(Output, graph_tells_of_one_operation_what_it_waited_for) {
  const Workbench bench;
  const Json graph = Json::parse(bench.run("graph --json " + kPrinted).output);
  int64_t waits = 0;
  for (const Json& op : graph["ops"]) {
    if (op["kind"] != "copy" || op["predecessors"].empty()) continue;
    const std::string id = std::to_string(op["id"].get<int64_t>());
    const Json one =
        Json::parse(bench.run("graph --json --operation " + id + " " + kPrinted).output);
    EXPECT_EQ(one["label"], op["label"]);
    EXPECT_GE(one["took_s"].get<double>(), 0.999 * op["alone_s"].get<double>());
    ASSERT_FALSE(one["waited_for"].empty());
    EXPECT_GE(one["waited_for"].front()["ended_before_s"], 0);
    const std::string text = bench.run("graph --operation " + id + " " + kPrinted).output;
    for (const Json& each : one["waited_for"]) {
      EXPECT_NE(text.find(each["because"].get<std::string>()), std::string::npos) << text;
    }
    if (++waits == 2) break;
  }
  EXPECT_EQ(waits, 2);
  const auto none = bench.run("graph --operation 1000000 " + kPrinted);
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.output.find("there is no operation 1000000"), std::string::npos) << none.output;
}

TEST(Output, markup_in_a_name_stays_text_on_the_page) {
  const std::string evil = "</script><script>alert(1)</script>{{data}}&\"";
  const std::string page = report_page({evil, "footer"}, {{"model", evil}});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(escaped_html("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
  // The JSON is what stands between its script element's tags, and reads back as what it was.
  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  const size_t end = page.find("</script>", begin);
  EXPECT_EQ(Json::parse(page.substr(begin, end - begin))["model"], evil);
}

TEST(Output, report_needs_no_network) {
  const Workbench bench;
  ASSERT_EQ(bench.run("report --out page.html " + kPrinted).code, 0);
  const std::string page = bench.read("page.html");
  EXPECT_EQ(page.find("src=\"http"), std::string::npos);
  EXPECT_EQ(page.find("href=\"http"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_NE(page.find("Chart.js v"), std::string::npos);
}

TEST(Output, interrupted_training_finishes_its_step_and_can_be_resumed) {
  const Workbench bench;
  bench.write_tiny_model();
  bench.write_store();
  const std::string train =
      "train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--checkpoint kept --metrics metrics.jsonl ";
  const Outcome stopped =
      bench.shell("$BALLAST " + train +
                  "--steps 100000000 & pid=$!\n"
                  "for i in $(seq 600); do grep -qs step metrics.jsonl && break; sleep 0.1; done\n"
                  "kill -INT $pid; wait $pid");
  EXPECT_EQ(stopped.code, 3) << stopped.output;
  EXPECT_TRUE(stopped.says("add --resume to go on")) << stopped.output;
  const std::string first = bench.read("metrics.jsonl");
  const int64_t next = Json::parse(first.substr(first.rfind('\n', first.size() - 2) + 1))["step"];
  const Outcome resumed =
      bench.run(train + "--resume --json --steps " + std::to_string(next + 3) + " 2>/dev/null");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  const Json result = Json::parse(resumed.output);
  EXPECT_EQ(result["first_step"], next + 1);
  EXPECT_EQ(result["next_step"], next + 3);
}

TEST(Output, quantities_have_three_digits_and_a_unit) {
  EXPECT_EQ(show(Duration::from_us(12345.6)), "12.3 ms");
  EXPECT_EQ(show(Duration::from_seconds(0.99951)), "1.00 s");
  EXPECT_EQ(show(Bytes{3 << 20}), "3.00 MiB");
  EXPECT_EQ(show(Bytes{17}), "17 bytes");
  EXPECT_EQ(show_count(1234567.8), "1,234,568");
  EXPECT_EQ(show_count(-1000), "-1,000");
  EXPECT_EQ(show_signed_percent(-0.01), "0.0 %");
  Table table({{"name", true}, {"value"}});
  table.add({"a", "10"});
  table.add({"longer", "5"});
  EXPECT_EQ(table.text(), "name    value\na          10\nlonger      5\n");
}

}  // namespace
}  // namespace ballast
