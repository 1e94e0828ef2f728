// The pages in a real browser: they draw without a complaint and without a network, show values
// under the pointer, sort and copy their tables, keep markup in names as text, and print.
//
// BALLAST_SCREENSHOTS=FOLDER keeps pictures of every page, light, dark, narrow and printed: look at
// them after a change.
#include "tests/cli/report_browser.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kTiny =
    " --model ./tiny.json --machine gh200-96gb-480gb --sequence-length 64 --global-batch 2 "
    "--micro-batch 2 ";

// What a search with all questions asked would print: the contents of frontier, sensitivities and
// ablation are made up, with round numbers.
Json searched(Json tune) {
  Json plan = tune["ranked"][0]["plan"];
  tune["objective"] = {{"name", "cost-per-token"}, {"value", 0.25}, {"unit", "1e-6 a token"}};
  for (const int devices : {1, 2}) {
    tune["frontier"].push_back({{"devices", devices},
                                {"label", "micro-batch 2"},
                                {"step_time_s", 0.5 / devices},
                                {"tokens_per_s", 256 * devices},
                                {"tokens_per_s_per_device", 256},
                                {"memory_bytes", {{"hbm", 1 << 30}, {"dram", 0}, {"nvme", 0}}},
                                {"cost_per_million_tokens", nullptr},
                                {"joules_per_token", nullptr},
                                {"plan", plan}});
  }
  Json points = Json::array();
  for (const double factor : {0.5, 1.0, 2.0}) {
    points.push_back(
        {{"factor", factor},
         {"value", 450 * factor},
         {"step_time_s", 0.25 / factor},
         {"same_plan_step_time_s", nullptr},
         {"differs", factor < 1 ? Json::array({"optimizer.sync: wait"}) : Json::array()}});
  }
  tune["sensitivities"].push_back(
      {{"key", "machine.link.gb_per_s"},
       {"unit", "GB/s"},
       {"value", 450},
       {"elasticity", -1.0},
       {"points", points},
       {"switches_at", {{"factor", 0.5}, {"value", 225}, {"differs", {"optimizer.sync: wait"}}}}});
  tune["ablation"] = {{"start", {{"label", "zero-offload"}, {"step_time_s", 0.75}}},
                      {"steps",
                       {{{"knob", "optimizer.cast"},
                         {"from", "cpu"},
                         {"to", "gpu"},
                         {"step_time_s", 0.5},
                         {"gain_s", 0.25}}}},
                      {"best_step_time_s", 0.5}};
  return tune;
}

constexpr int kNarrow = 400;  // pixels: a phone

// One workbench with every kind of page, and one browser, for all tests: both take seconds.
struct Studio {
  Workbench bench;
  std::unique_ptr<Browser> browser;
  std::map<std::string, std::string> pages;  // by kind: its file

  void make(const std::string& kind, const std::string& arguments) {
    const Outcome outcome = bench.run(arguments);
    ASSERT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
    pages[kind] = bench.path(kind + ".html");
    ASSERT_TRUE(bench.exists(kind + ".html")) << arguments << "\n" << outcome.output;
  }

  void make_pages() {
    bench.write_tiny_model();
    bench.write("metrics.jsonl", R"({"step": 0, "loss": 5.5, "step_time_s": 0.2})"
                                 "\n"
                                 R"({"step": 1, "loss": 5.25, "step_time_s": 0.1})"
                                 "\n");
    const Outcome run = bench.run(
        "verify --device paced --steps 3 --slow-down 200 --strategy "
        "superoffload --out verify.json" +
        kTiny);
    ASSERT_EQ(run.code, 0) << run.output;
    make("verified", "report --verify verify.json --metrics metrics.jsonl --out verified.html");
    const std::string grid = "compare" + kTiny +
                             "--set plan.activations=keep --set plan.weights=stationary --set "
                             "plan.optimizer.gpu_buckets=0 "
                             "--strategy superoffload,resident ";
    // A GPU of 1.0005 GB, of which 1 is reserved, holds none of it.
    make("swept",
         grid + "--set machine.gpu.memory_gb=1.0005,4,8 --out swept.json --html swept.html");
    // Names of several lines.
    make("named", "compare" + kTiny +
                      "--set plan.activations=keep --set plan.weights=stationary "
                      "--strategy superoffload:devices=1:optimizer.gpu_buckets=0,"
                      "resident:devices=1:zero_stage=2,zero-offload:devices=1:zero_stage=1 "
                      "--set machine.link.gb_per_s=16..256:log:3 --html named.html");
    make("crossed", grid + "--model ./tiny.json,gpt2 --out crossed.json --html crossed.html");
    const Outcome found = bench.run("tune --json --deadline 2 --strategy superoffload" + kTiny +
                                    "2>/dev/null > tune.json");
    ASSERT_EQ(found.code, 0) << found.output;
    bench.write("tune.json", searched(Json::parse(bench.read("tune.json"))).dump());
    make("tuned", "report --tune tune.json --model ./tiny.json --out tuned.html");
    ASSERT_EQ(bench.run("validate llmq-h100-small --out validation.json").code, 0);
    make("validated", "report --validation validation.json --out validated.html");
    ASSERT_EQ(
        bench.run("validate llmq-h100-small swiss-ai-gh200 --left-out --out judged.json").code, 0);
    make("judged", "report --validation judged.json --out judged.html");
    make("planned", "report --strategy superoffload --out planned.html" + kTiny);
    make("offered",
         "compare --model ./tiny.json --sequence-length 64 --global-batch 8 --micro-batch 1 "
         "--strategy zero-2 --set plan.activations=keep --tokens 15T --html offered.html --offer "
         "'alps-gh200-quad x4 @ 3.10, dgx-h100-80gb x8 @ 2.40, rtx-4090-pcie x8 @ 0.30'");
  }
};

class ReportPages : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::optional<std::string> program = installed_browser();
    if (!program) return;
    studio_ = std::make_unique<Studio>();
    studio_->make_pages();
    studio_->bench.shell("mkdir browser");
    studio_->browser = std::make_unique<Browser>(*program, studio_->bench.path("browser"));
  }
  static void TearDownTestSuite() { studio_.reset(); }

  void SetUp() override {
    if (!studio_) GTEST_SKIP() << "no Chromium: scripts/setup.sh --tests installs it";
    ASSERT_TRUE(studio_->browser) << "the pages could not be made";
  }

  static Browser& open(const std::string& kind, const Screen& screen = {}) {
    studio_->browser->open(studio_->pages.at(kind), screen);
    return *studio_->browser;
  }
  static const Workbench& bench() { return studio_->bench; }
  static const std::map<std::string, std::string>& pages() { return studio_->pages; }

  static std::unique_ptr<Studio> studio_;
};
std::unique_ptr<Studio> ReportPages::studio_;

void keep_picture(const std::string& name, const std::string& bytes) {
  const char* folder = std::getenv("BALLAST_SCREENSHOTS");
  if (folder != nullptr) std::ofstream(std::string(folder) + "/" + name) << bytes;
}

// The number of canvases on which nothing was painted.
const std::string kEmptyCharts = R"(drawings.filter(({chart}) => {
  const {width, height} = chart.canvas;
  const pixels = chart.ctx.getImageData(0, 0, width, height).data;
  const shades = new Set();
  for (let i = 0; i < pixels.length; i += 4 * 7) shades.add(pixels[i] + 256 * pixels[i + 3]);
  return shades.size < 3;
}).length)";

// A place within chart number N where a value is drawn, in the window, scrolled to.
std::string place_in_chart(int number) {
  return "(() => {const {chart} = drawings[" + std::to_string(number) + R"(];
    chart.canvas.scrollIntoView({block: 'center'});
    const box = chart.canvas.getBoundingClientRect();
    for (let i = 0; i < chart.data.datasets.length; ++i) {
      if (chart.data.datasets[i].label === 'equal') continue;
      const list = chart.getDatasetMeta(i).data;
      for (let j = 0; j < list.length; ++j) {
        const raw = chart.data.datasets[i].data[j];
        const at = list[j].getCenterPoint();
        if (raw === null || raw === 0 || raw.y === null || Number.isNaN(at.x + at.y)) continue;
        return {x: box.left + at.x, y: box.top + at.y};
      }
    }})())";
}

// What people look at pages with.
const std::map<std::string, Screen> kScreens = {{"light", {1280, false}},
                                                {"dark", {1280, true}},
                                                {"narrow-light", {kNarrow, false}},
                                                {"narrow-dark", {kNarrow, true}}};

TEST_F(ReportPages, draw_without_a_complaint_or_a_network_in_light_dark_and_narrow) {
  const std::map<std::string, int> charts = {{"verified", 6}, {"swept", 2},   {"named", 2},
                                             {"crossed", 2},  {"tuned", 6},   {"validated", 2},
                                             {"judged", 2},   {"planned", 3}, {"offered", 2}};
  for (const auto& [kind, file] : pages()) {
    for (const auto& [name, screen] : kScreens) {
      Browser& browser = open(kind, screen);
      const std::string where = kind + ", " + name;
      for (const std::string& complaint : browser.complaints()) {
        ADD_FAILURE() << where << ": " << complaint;
      }
      EXPECT_GE(browser.evaluate("drawings.length"), charts.at(kind)) << where;
      EXPECT_EQ(browser.evaluate(kEmptyCharts), 0) << where;
      EXPECT_LE(browser.evaluate("document.documentElement.scrollWidth"), screen.width)
          << where << ": the page is wider than its window";
      EXPECT_EQ(browser.evaluate(
                    "/NaN|undefined|Infinity|\\[object|\\bnull\\b/.test(document.body.innerText)"),
                false)
          << where;
      if (std::getenv("BALLAST_SCREENSHOTS") != nullptr)
        keep_picture(kind + "-" + name + ".png", browser.screenshot());
    }
  }
}

// What of a timeline lies outside of its drawing, and names of lanes that run into their lanes.
const std::string kCutLanes = R"([...document.querySelectorAll('svg')].flatMap((svg) => {
  const all = svg.getBoundingClientRect(), box = svg.parentElement;
  const cut = [...svg.querySelectorAll('rect.span, rect.idle, text')].filter((one) => {
    const at = one.getBoundingClientRect();
    return at.left < all.left - 1 || at.right > all.right + 1 || at.top < all.top - 1 ||
      at.bottom > all.bottom + 1;
  }).map((one) => 'cut: ' + (one.textContent || one.className.baseVal));
  const axis = svg.querySelector('line.axis').getBoundingClientRect().left;
  const long = [...svg.querySelectorAll('text.lane')]
    .filter((one) => one.getBoundingClientRect().right > axis)
    .map((one) => 'runs into its lane: ' + one.textContent);
  const hidden = box.scrollWidth + 1 < all.width ? ['the box does not hold the drawing'] : [];
  return [...cut, ...long, ...hidden];
}))";

// On a phone it is as wide as it must be to be read, and scrolls in its own box.
TEST_F(ReportPages, timeline_is_whole_and_scrolls_in_its_own_box) {
  for (const std::string kind : {"verified", "planned", "tuned"}) {
    for (const auto& [name, screen] : kScreens) {
      Browser& browser = open(kind, screen);
      const Json cut = browser.evaluate(kCutLanes);
      EXPECT_TRUE(cut.empty()) << kind << ", " << name << ": " << cut;
      EXPECT_GE(browser.evaluate("document.querySelectorAll('svg rect.span').length"), 3) << kind;
      if (screen.width != kNarrow) continue;
      EXPECT_EQ(browser.evaluate("(() => {const box = document.querySelector('svg').parentElement;"
                                 "box.scrollLeft = 10000; return box.scrollLeft > 100 && "
                                 "box.clientWidth <= innerWidth;})()"),
                true)
          << kind;
    }
  }
}

// On a phone every row of a table is a card, whose values have their columns' titles beside them.
TEST_F(ReportPages, tables_fold_into_cards_on_a_phone) {
  for (const auto& [kind, file] : pages()) {
    Browser& browser = open(kind, {kNarrow, false});
    EXPECT_GE(browser.evaluate("document.querySelectorAll('td').length"), 4) << kind;
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.scrolls')].filter(one => "
                               "one.querySelector('table') && one.scrollWidth > one.clientWidth)"
                               ".length"),
              0)
        << kind;
    // The name that a row begins with is the head of its card.
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.folds td:not(.name:first-child)')]"
                               ".filter(one => one.textContent && one.dataset.title && "
                               "getComputedStyle(one, '::before').content !== "
                               "JSON.stringify(one.dataset.title)).length"),
              0)
        << kind;
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.folds td')].filter(one => "
                               "getComputedStyle(one).display === 'table-cell').length"),
              0)
        << kind;
    EXPECT_GE(browser.evaluate("document.querySelectorAll('.folds').length"), 1) << kind;
  }
}

// Each place has an axis of its own: a GPU's few bytes beside a CPU's many can be seen.
TEST_F(ReportPages, memory_bars_have_an_axis_for_each_place) {
  Browser& browser = open("planned");
  const Json bars = browser.evaluate(
      "drawings.filter(one => one.label.includes('against the capacity'))"
      ".map(({chart, label}) => [label, chart.data.labels.length])");
  ASSERT_EQ(bars.size(), 2U) << bars;
  EXPECT_EQ(bars[0], Json::array({"GPU memory by category against the capacity", 1}));
  EXPECT_EQ(bars[1], Json::array({"CPU memory by category against the capacity", 1}));
}

// Two numbers for a step stand on the page of a run that trained too: it says which is which.
TEST_F(ReportPages, two_measured_step_times_are_explained) {
  Browser& browser = open("verified");
  const std::string figures = browser.evaluate("document.getElementById('figures').innerText");
  EXPECT_NE(figures.find("the median of the 3 steps of verify"), std::string::npos) << figures;
  EXPECT_NE(figures.find("step time while training"), std::string::npos) << figures;
  EXPECT_NE(figures.find("the median of 2 steps of train"), std::string::npos) << figures;
  const std::string why = browser.evaluate("document.getElementById('steps-section').innerText");
  EXPECT_NE(why.find("Another run, of verify, took"), std::string::npos) << why;
}

TEST_F(ReportPages, lines_that_coincide_are_one_entry_of_the_legend) {
  Browser& browser = open("swept");
  const std::string line = "{label: 'LABEL', data: [{x: 1, y: Y}, {x: 2, y: null}]}";
  const auto of = [&](const std::string& label, const std::string& y) {
    std::string text = line;
    text.replace(text.find("LABEL"), 5, label);
    return text.replace(text.find("Y}"), 1, y);
  };
  EXPECT_EQ(browser.evaluate("joinCoinciding([" + of("a", "100") + "," + of("b", "120") + "," +
                             of("c", "100.1") + "]).map(one => one.label)"),
            Json::array({"a = c", "b"}));
}

TEST_F(ReportPages, validation_leads_with_what_was_left_out) {
  Browser& browser = open("judged");
  const std::string figures = browser.evaluate("document.getElementById('figures').innerText");
  const size_t source = figures.find("source left out");
  EXPECT_NE(source, std::string::npos) << figures;
  EXPECT_LT(source, figures.find("fitted to it too")) << figures;
  // The choice draws the other predictions.
  const std::string drawn = "JSON.stringify(drawings[0].chart.data.datasets[0].data.map(p => p.y))";
  const Json before = browser.evaluate(drawn);
  browser.evaluate(
      "(() => {const select = document.querySelector('#validation-section select');"
      "select.value = 'nothing'; select.dispatchEvent(new Event('change'));})()");
  EXPECT_NE(browser.evaluate("JSON.stringify(drawings[drawings.length - 1].chart.data.datasets[0]"
                             ".data.map(p => p.y))"),
            before);
  EXPECT_TRUE(browser.complaints().empty());
}

TEST_F(ReportPages, offers_say_energy_and_what_would_change_the_ranking) {
  Browser& browser = open("offered");
  const std::string text = browser.evaluate("document.getElementById('offers-section').innerText");
  for (const char* part : {"cheapest up to", "level with", "Wh", "not known", "no: devices"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// Labels of axes that touch: below a chart by the width of their text, beside it by its lines.
const std::string kOverlaps = R"(drawings.flatMap(({chart, label}) =>
  Object.values(chart.scales).filter((scale) => scale.options.display !== false &&
    scale.options.ticks.display !== false).map((scale) => {
    const font = Chart.defaults.font;
    chart.ctx.font = `${font.size}px ${font.family}`;
    const across = scale.isHorizontal();
    const boxes = scale.ticks.map((tick, i) => {
      const lines = [tick.label].flat().filter(Boolean);
      const size = across ? Math.max(0, ...lines.map((line) => chart.ctx.measureText(line).width)) :
        lines.length * font.size * 1.2;
      return {middle: scale.getPixelForTick(i), size, text: lines.join(' ')};
    }).filter((box) => box.size > 0).sort((a, b) => a.middle - b.middle);
    const touching = boxes.filter((box, i) => i > 0 &&
      box.middle - boxes[i - 1].middle < (box.size + boxes[i - 1].size) / 2);
    return touching.map((box) => `${label}: ${box.text}`);
  })).flat())";

TEST_F(ReportPages, labels_of_axes_do_not_touch) {
  for (const auto& [kind, file] : pages()) {
    for (const Screen& screen : {Screen{}, Screen{kNarrow, false}}) {
      Browser& browser = open(kind, screen);
      const Json overlaps = browser.evaluate(kOverlaps);
      EXPECT_TRUE(overlaps.empty()) << kind << ", " << screen.width << " wide: " << overlaps;
    }
  }
}

// What a table holds is seen without scrolling on a usual screen.
TEST_F(ReportPages, tables_of_a_comparison_are_no_wider_than_the_page) {
  for (const std::string kind : {"swept", "crossed", "named", "offered", "judged"}) {
    Browser& browser = open(kind);
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.scrolls')].filter(one => "
                               "one.scrollWidth > one.clientWidth).length"),
              0)
        << kind;
  }
}

TEST_F(ReportPages, every_chart_shows_its_values_under_the_pointer) {
  for (const auto& [kind, file] : pages()) {
    Browser& browser = open(kind);
    const int count = browser.evaluate("drawings.length");
    for (int i = 0; i < count; ++i) {
      const std::string chart = "drawings[" + std::to_string(i) + "].chart";
      const std::string where =
          kind + ": " +
          browser.evaluate("drawings[" + std::to_string(i) + "].label").get<std::string>();
      const Json place = browser.evaluate(place_in_chart(i));
      ASSERT_TRUE(place.is_object()) << where << " has no value";
      browser.point_at(place);
      ASSERT_TRUE(browser.becomes_true(chart + ".tooltip.opacity > 0")) << where;
      const std::string text =
          browser.evaluate("[...(" + chart + ".tooltip.title || []), ..." + chart +
                           ".tooltip.body.flatMap(one => one.lines)].join(' | ')");
      EXPECT_NE(text.find_first_of("0123456789"), std::string::npos) << where << ": " << text;
    }
    EXPECT_TRUE(browser.complaints().empty()) << kind;
  }
}

// The page says what the JSON says: tokens a second, in whole tokens.
TEST_F(ReportPages, value_under_the_pointer_is_that_of_the_cell) {
  const Json json = Json::parse(bench().read("crossed.json"));
  Browser& browser = open("crossed");
  browser.point_at(browser.evaluate(place_in_chart(0)));
  ASSERT_TRUE(browser.becomes_true("drawings[0].chart.tooltip.opacity > 0"));
  const std::string text =
      browser.evaluate("drawings[0].chart.tooltip.body.flatMap(one => one.lines).join(' | ')");
  // Models stand in the order of their size: the tiny one, which was named first, comes first.
  const double rate = json["cells"][0]["tokens_per_s"];
  const std::string shown = browser.evaluate("count(" + std::to_string(rate) + ")");
  EXPECT_NE(
      text.find(json["cells"][0]["at"]["strategy"].get<std::string>() + " " + shown + " tokens/s"),
      std::string::npos)
      << text << " should have " << shown;
}

TEST_F(ReportPages, timeline_names_operations_and_idle_time_under_the_pointer) {
  Browser& browser = open("verified");
  for (const std::string kind : {"span", "idle"}) {
    const Json place = browser.evaluate(
        "(() => {const all = [...document.querySelectorAll('svg rect." + kind +
        "')].sort((a, b) => b.getBoundingClientRect().width - a.getBoundingClientRect().width);"
        "all[0].scrollIntoView({block: 'center'}); const box = all[0].getBoundingClientRect();"
        "return {x: box.left + box.width / 2, y: box.top + box.height / 2};})()");
    browser.point_at(place);
    ASSERT_TRUE(browser.becomes_true("!tip.hidden")) << kind;
    const std::string text = browser.evaluate("tip.textContent");
    EXPECT_NE(text.find("s from "), std::string::npos) << text;
    EXPECT_EQ(std::isdigit(static_cast<unsigned char>(text[0])) != 0, kind == "span") << text;
    EXPECT_EQ(text.starts_with("idle, "), kind == "idle") << text;
  }
  // Boxes with room hold the number of their operation, which does not leave them.
  const Json numbers = browser.evaluate(
      "(() => {return [...document.querySelectorAll('svg text.number')].map(text => {"
      "const inner = text.getBoundingClientRect(); const outer = "
      "text.previousElementSibling.getBoundingClientRect();"
      "return {number: Number(text.textContent), inside: inner.left >= outer.left &&"
      "inner.right <= outer.right && inner.top >= outer.top && inner.bottom <= outer.bottom};});"
      "})()");
  ASSERT_FALSE(numbers.empty());
  const Json operations = browser.evaluate("data.timelines.predicted.spans.map(span => span[5])");
  for (const Json& each : numbers) {
    EXPECT_TRUE(each["inside"].get<bool>()) << each;
    EXPECT_NE(std::find(operations.begin(), operations.end(), each["number"]), operations.end());
  }
  // Busy and idle of a lane make up the step.
  const Json sums = browser.evaluate(
      "lanesOf(data.timelines.predicted).map(lane => lane.idle + lane.spans.reduce("
      "(sum, [, begin, end]) => sum + end - begin, 0) - data.timelines.predicted.length_us)");
  ASSERT_GE(sums.size(), 3U);
  for (const Json& rest : sums) EXPECT_NEAR(rest.get<double>(), 0, 1e-3);
}

// Half a megabyte is not 0.00 GiB.
TEST_F(ReportPages, bytes_are_in_units_that_show_them) {
  Browser& browser = open("swept");
  const std::string why = browser.evaluate("document.getElementById('misfits-section').innerText");
  EXPECT_EQ(why.find("0.00 "), std::string::npos) << why;
  EXPECT_NE(why.find("iB usable"), std::string::npos) << why;
  // A number is in one line.
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('td:not(.name) wbr').length"), 0);
  EXPECT_EQ(browser.evaluate("/\\d{7,} ?bytes/.test(document.body.innerText)"), false);
}

TEST_F(ReportPages, misfit_tells_its_reason_under_the_pointer) {
  Browser& browser = open("swept");
  const Json place = browser.evaluate(R"((() => {const {chart} = drawings[0];
    const set = chart.data.datasets.findIndex((one) => one.label === 'does not fit');
    chart.canvas.scrollIntoView({block: 'center'});
    const box = chart.canvas.getBoundingClientRect(), at = chart.getDatasetMeta(set).data[0];
    return {x: box.left + at.x, y: box.top + at.y};})())");
  browser.point_at(place);
  ASSERT_TRUE(browser.becomes_true("drawings[0].chart.tooltip.opacity > 0"));
  const std::string text =
      browser.evaluate("drawings[0].chart.tooltip.body.flatMap(one => one.lines).join(' ')");
  EXPECT_NE(text.find("does not fit. GPU memory:"), std::string::npos) << text;
}

TEST_F(ReportPages, tables_sort_by_size_with_the_mouse_and_with_keys) {
  Browser& browser = open("validated");
  const std::string head =
      "[...document.querySelectorAll('#validation-cases-section th')].find(one => "
      "one.textContent === 'error')";
  const std::string values =
      "[...document.querySelectorAll('#validation-cases-section tbody tr')].map(line => "
      "line.cells[line.cells.length - 1].ballastValue)";
  browser.evaluate(head + ".querySelector('button').click()");
  EXPECT_EQ(browser.evaluate(head + ".getAttribute('aria-sort')"), "ascending");
  const std::vector<double> up = browser.evaluate(values);
  ASSERT_GE(up.size(), 2U);
  EXPECT_TRUE(std::is_sorted(up.begin(), up.end()));
  browser.evaluate(head + ".querySelector('button').focus()");
  browser.press("Enter");
  EXPECT_EQ(browser.evaluate(head + ".getAttribute('aria-sort')"), "descending");
  const std::vector<double> down = browser.evaluate(values);
  EXPECT_TRUE(std::is_sorted(down.rbegin(), down.rend()));
}

TEST_F(ReportPages, table_is_copied_with_units_in_its_heads_and_numbers_in_full) {
  const Json json = Json::parse(bench().read("swept.json"));
  Browser& browser = open("swept");
  // What would reach the clipboard: that of a headless browser belongs to the whole session.
  browser.evaluate(
      "Object.defineProperty(navigator, 'clipboard', {value: {writeText: "
      "async (text) => { window.copied = text; }}})");
  browser.evaluate("document.querySelector('#cells-section button.copy').click()");
  ASSERT_TRUE(browser.becomes_true("window.copied"));
  const std::string text = browser.evaluate("window.copied");
  EXPECT_NE(text.find("\tstep time (s)\t"), std::string::npos) << text;
  const auto held = static_cast<int64_t>(json["cells"][2]["peak_gpu_bytes"].get<double>());
  EXPECT_NE(text.find("\t" + std::to_string(held) + "\t"), std::string::npos) << text;
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')),
            json["cells"].size() + 1);
  // Where the clipboard is closed, the table is left selected.
  browser.evaluate("navigator.clipboard.writeText = async () => { throw new Error('closed'); }");
  browser.evaluate("document.querySelector('#cells-section button.copy').click()");
  EXPECT_TRUE(browser.becomes_true("getSelection().toString().includes('superoffload')"));
}

TEST_F(ReportPages, markup_in_names_stays_text) {
  const std::string evil =
      "</script><script>window.owned = 1</script><img src=x onerror='owned = 1'>{{data}}";
  Json compared = Json::parse(bench().read("crossed.json"));
  compared["rows"][0]["values"][0] = evil;
  compared["cells"][0]["at"]["model"] = evil;
  compared["cells"][0]["reason"] = evil;
  compared["origin"]["command"] = evil;
  bench().write("evil.json", compared.dump());
  Json tune = Json::parse(bench().read("tune.json"));
  tune["frontier"][0]["label"] = evil;
  tune["sensitivities"][0]["key"] = evil;
  tune["ablation"]["start"]["label"] = evil;
  tune["reasons"].push_back({{"reason", evil}, {"plans", 1}, {"nearest", evil}});
  bench().write("evil-tune.json", tune.dump());
  for (const std::string source :
       {"--compare evil.json", "--tune evil-tune.json --model ./tiny.json"}) {
    ASSERT_EQ(bench().run("report " + source + " --out evil.html").code, 0);
    Browser& browser = *studio_->browser;
    browser.open(bench().path("evil.html"), {});
    EXPECT_TRUE(browser.complaints().empty()) << browser.complaints().front();
    EXPECT_EQ(browser.evaluate("typeof window.owned"), "undefined");
    EXPECT_EQ(browser.evaluate("document.scripts.length"), 3);
    EXPECT_EQ(browser.evaluate("document.images.length"), 0);
    EXPECT_EQ(browser.evaluate("document.body.innerText.includes('<img src=x')"), true);
  }
}

// On paper it is light, as wide as the paper, and nothing is folded away that was open.
TEST_F(ReportPages, paper_is_light_and_holds_the_whole_width) {
  for (const auto& [kind, file] : pages()) {
    Browser& browser = open(kind, {1240, true});
    const std::string text_color = "getComputedStyle(document.body).color";
    const Json on_screen = browser.evaluate(text_color);
    const std::string pdf = browser.print();
    EXPECT_TRUE(pdf.starts_with("%PDF")) << kind;
    EXPECT_GT(pdf.size(), 20'000U) << kind;
    keep_picture(kind + ".pdf", pdf);
    EXPECT_EQ(browser.evaluate(text_color), on_screen) << "as before";
    browser.evaluate("dispatchEvent(new Event('beforeprint'))");
    EXPECT_EQ(browser.evaluate(text_color), "rgb(28, 36, 48)") << kind;
    const double width = browser.evaluate("Math.max(...drawings.map(one => one.chart.width))");
    EXPECT_LE(width, 186 / 25.4 * 96) << kind;
    EXPECT_GT(width, 500) << kind;
    EXPECT_LE(
        browser.evaluate("Math.max(...[...document.querySelectorAll('table, svg')].map(one => "
                         "one.getBoundingClientRect().right))"),
        186 / 25.4 * 96 + 1)
        << kind;
    browser.evaluate("dispatchEvent(new Event('afterprint'))");
  }
}

}  // namespace
}  // namespace ballast
