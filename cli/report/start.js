// Which page.

Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
if (data.validation) {
  drawValidationPage();
} else if (data.comparison) {
  drawComparisonPage();
} else if (data.tune) {
  drawTunePage();
} else {
  drawPlanPage();
}
drawOrigin();
