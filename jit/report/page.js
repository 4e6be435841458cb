"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // Light and dark.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // A step's row, with the source of its kernel under it.
  const detailOf = (row) => row.nextElementSibling?.classList.contains("detail") ? row.nextElementSibling : null;
  function unfold(button, open) {
    const row = button.closest("tr");
    button.setAttribute("aria-expanded", String(open));
    row.classList.toggle("open", open);
    detailOf(row)?.remove();
    const source = open && button.dataset.kernel && document.getElementById(button.dataset.kernel);
    if (!source) return;
    const detail = document.createElement("tr");
    const cell = detail.insertCell();
    detail.className = "detail";
    cell.colSpan = row.cells.length;
    cell.append(source.querySelector("pre").cloneNode(true));
    row.after(detail);
  }

  // Sorting: first the way in which one looks for the largest, or A to Z; then the other way; then as it was.
  function sort(button) {
    const head = button.closest("th"), body = head.closest("table").tBodies[0], column = head.cellIndex;
    const numbers = head.dataset.type === "number";
    const ways = numbers ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
    const way = ways[(ways.indexOf(head.getAttribute("aria-sort")) + 3 + 1) % 3];
    for (const other of head.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", way);
    const sign = way === "descending" ? -1 : 1;
    const keyed = Array.from(body.rows).filter((row) => !row.classList.contains("detail")).map((row) => {
      const cell = row.cells[column], n = Number(row.dataset.n);
      if (way === "none") return { row, n, key: n };
      const text = cell.dataset.v ?? cell.textContent;
      return { row, n, key: numbers ? (text === "" ? null : Number(text)) : text };
    });
    const names = new Intl.Collator(undefined, { numeric: true });
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.n - b.n;
      return sign * (typeof a.key === "number" ? a.key - b.key : names.compare(a.key, b.key)) || a.n - b.n;
    });
    const sorted = document.createDocumentFragment();
    for (const { row } of keyed) {
      const detail = detailOf(row);
      sorted.append(row);
      if (detail) sorted.append(detail);
    }
    body.append(sorted);
  }

  // Going to something that is folded away.
  function reveal(id) {
    const target = document.getElementById(id);
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView({ block: /^(step|line)-/.test(id) ? "center" : "start" });
  }
  const go = (id) => { location.hash === "#" + id ? reveal(id) : location.hash = id; };
  addEventListener("hashchange", () => reveal(decodeURIComponent(location.hash.slice(1))));
  if (location.hash) reveal(decodeURIComponent(location.hash.slice(1)));

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.sort, button.unfold, [data-go], a[href^='#']");
    if (!button) return;
    if (button.classList.contains("sort")) sort(button);
    else if (button.classList.contains("unfold")) unfold(button, button.getAttribute("aria-expanded") !== "true");
    else if (button.dataset.go) go(button.dataset.go);
    else if (button.getAttribute("href") === location.hash) reveal(location.hash.slice(1));
  });

  // Searching: an item stays if it has all the words; what holds items stays if one of them does.
  const search = document.getElementById("search"), matches = document.getElementById("matches");
  const nothing = document.getElementById("nothing");
  const sections = all("main > section"), groups = all("[data-group]");
  const links = new Map(all("nav > ul > li > a").map((a) => [a.hash.slice(1), a]));
  const totals = new Map(Array.from(links, ([id, a]) => [id, a.lastElementChild.textContent]));
  let items = null, folded = null, waiting = 0;
  const find = () => items ??= all("[data-item]").map((element) => ({ element, text: element.textContent.toLowerCase() }));

  function mark(elements, words) {
    if (!window.Highlight || !CSS.highlights) return;
    CSS.highlights.delete("found");
    if (!words.length) return;
    const ranges = [];
    for (const element of elements) {
      const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
      while (walker.nextNode() && ranges.length < 800) {
        const text = walker.currentNode.data.toLowerCase();
        if (text.length !== walker.currentNode.data.length) continue;
        for (const word of words) {
          for (let at = text.indexOf(word); at >= 0 && ranges.length < 800; at = text.indexOf(word, at + word.length)) {
            const range = new Range();
            range.setStart(walker.currentNode, at);
            range.setEnd(walker.currentNode, at + word.length);
            ranges.push(range);
          }
        }
      }
      if (ranges.length >= 800) break;
    }
    if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
  }

  function restore() {
    for (const { element } of find()) {
      element.hidden = false;
      if (element.tagName === "TR") { const detail = detailOf(element); if (detail) detail.hidden = false; }
    }
    for (const element of [...groups, ...sections]) element.hidden = false;
    for (const [id, a] of links) { a.lastElementChild.textContent = totals.get(id); a.classList.remove("empty"); }
    for (const [details, open] of folded ?? []) details.open = open;
    folded = null;
    root.classList.remove("searching");
    nothing.hidden = true;
    matches.textContent = "";
    mark([], []);
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { if (folded) restore(); return; }
    folded ??= new Map(all("details").map((details) => [details, details.open]));
    root.classList.add("searching");
    const found = [], inside = new Map();
    for (const { element, text } of find()) {
      const hit = words.every((word) => text.includes(word));
      element.hidden = !hit;
      if (element.tagName === "TR") { const detail = detailOf(element); if (detail) detail.hidden = !hit; }
      if (!hit) continue;
      found.push(element);
      for (let at = element.parentElement; at && at.tagName !== "MAIN"; at = at.parentElement) {
        if (at.tagName === "SECTION" || at.hasAttribute("data-group")) inside.set(at, (inside.get(at) ?? 0) + 1);
      }
    }
    for (const element of groups) {
      element.hidden = !inside.has(element);
      if (element.tagName === "DETAILS" && !element.hidden) element.open = true;
    }
    for (const element of sections) {
      const n = inside.get(element) ?? 0, link = links.get(element.id);
      element.hidden = n === 0;
      if (link) { link.lastElementChild.textContent = n || ""; link.classList.toggle("empty", n === 0); }
    }
    if (found.length <= 30) for (const element of found) if (element.tagName === "DETAILS") element.open = true;
    matches.textContent = found.length === 1 ? "1 match" : `${found.length.toLocaleString("en")} matches`;
    nothing.hidden = found.length > 0;
    mark(found, words);
  }

  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 100); });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      filter();
      search.blur();
    }
  });
  if (search.value) filter();

  // Which section is being read.
  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? seen.add(entry.target) : seen.delete(entry.target);
    const first = sections.find((section) => seen.has(section));
    for (const [id, a] of links) id === first?.id ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current");
  }, { rootMargin: "-10% 0px -60% 0px" });
  for (const section of sections) watcher.observe(section);

  // On paper the plans and guards are unfolded.
  let printed = [];
  addEventListener("beforeprint", () => {
    printed = all("details[data-group]:not([open])");
    for (const details of printed) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of printed) details.open = false; });
})();
