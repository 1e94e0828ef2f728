// The HTML report: one file that needs no network, from JSON that the page's script draws.
//
// Will not do: read files or decide what is shown (cli/verbs/report.cpp, page.js).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ballast {

struct ReportText {
  std::string title;
  std::string footer;
};

// `data` has the keys that page.js reads: validation alone (what `ballast validate --json` prints),
// or prediction, measured, error_percent, steps, timelines, metrics, plan_text. Any text in it is
// safe: it cannot end the script that holds it.
std::string report_page(const ReportText& text, const nlohmann::ordered_json& data);

// `text` with the characters that mean something in HTML replaced.
std::string escaped_html(const std::string& text);

}  // namespace ballast
