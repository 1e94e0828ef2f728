// The parts of the report's page as text; defined by a source that CMake makes from this folder.
#pragma once

namespace ballast {

extern const char* const kReportPage;  // HTML with {{names}} to fill in
extern const char* const kReportStyle;
extern const char* const kReportScript;
extern const char* const kReportCharts;  // Chart.js (MIT licence)

}  // namespace ballast
