/* Sets the chosen colours before the first paint; a plain script, so that nothing flashes. */
(() => {
  try {
    const chosen = localStorage.getItem("phpq.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; then the page follows the system.
  }
})();
