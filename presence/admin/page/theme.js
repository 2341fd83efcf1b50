// Runs before the first paint, so that the other theme is never visible.
(() => {
  const KEY = "presence-theme";
  const ORDER = ["auto", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be disabled
    }
  }

  function apply(theme) {
    root.dataset.theme = ORDER.includes(theme) ? theme : "auto";
  }

  function label(button) {
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[root.dataset.theme];
    button.setAttribute("aria-label", `Colours: ${root.dataset.theme}; change`);
    button.title = `Colours: ${root.dataset.theme}`;
  }

  function notify() {
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  apply(stored());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", notify);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    label(button);
    button.addEventListener("click", () => {
      apply(ORDER[(ORDER.indexOf(root.dataset.theme) + 1) % ORDER.length]);
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // then the choice lasts until this page is closed
      }
      label(button);
      notify();
    });
  });
})();
