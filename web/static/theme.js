// Before the first paint: the theme that was chosen here, else the system's.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* storage is forbidden: the system's theme it is */ }
})();
