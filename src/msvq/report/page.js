"use strict";
// A run that trains: its page is read again, which keeps the place where one reads, until it is over.
(() => {
  const live = document.querySelector(".progress[data-renew]");
  if (!live) return;
  setTimeout(() => location.reload(), 1000 * live.dataset.renew);
  if (Date.now() > 1000 * live.dataset.late) live.querySelector(".resume").hidden = false;
})();

// Several runs: one at a time, chosen by tabs. Without this script they stand below one another.
(() => {
  const runs = [...document.querySelectorAll(".run")];
  if (runs.length < 2) return;
  const list = document.createElement("div");
  list.className = "tabs";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Runs");
  const tabs = runs.map((run, index) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = "tab-" + index;
    tab.textContent = run.dataset.title;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", run.id);
    run.setAttribute("role", "tabpanel");
    run.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => choose(index));
    tab.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const next = (index + way + runs.length) % runs.length;
      choose(next);
      tabs[next].focus();
    });
    list.append(tab);
    return tab;
  });
  function choose(chosen) {
    runs.forEach((run, index) => {
      run.hidden = index !== chosen;
      tabs[index].setAttribute("aria-selected", String(index === chosen));
      tabs[index].tabIndex = index === chosen ? 0 : -1;
    });
  }
  document.getElementById("runs").prepend(list);
  choose(0);
})();
