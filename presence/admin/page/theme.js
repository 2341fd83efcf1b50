// Runs before the first paint, so that nobody sees the other theme first.
(() => {
  const KEY = "presence-theme";
  const ORDER = ["auto", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden
    }
  }

  function use(theme) {
    root.dataset.theme = ORDER.includes(theme) ? theme : "auto";
  }

  function label(button) {
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[root.dataset.theme];
    button.setAttribute("aria-label", `Colours: ${root.dataset.theme}; change`);
    button.title = `Colours: ${root.dataset.theme}`;
  }

  function tell() {
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  use(stored());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    label(button);
    button.addEventListener("click", () => {
      use(ORDER[(ORDER.indexOf(root.dataset.theme) + 1) % ORDER.length]);
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // then it holds for this page only
      }
      label(button);
      tell();
    });
  });
})();
