// The page: navigation, routes, keys, and the theme. Each page is a function of its own file:
//   page({ main, path, query, live, about }) shows it, and may follow resources with `live(path, query, show)`.

import { follow, read } from "./api.js"
import { ask, el, to, toast } from "./dom.js"
import { aggregates, aggregate } from "./aggregates.js"
import { brokers, transactions } from "./cluster.js"
import { groups, group } from "./groups.js"
import { captures, job, jobs } from "./jobs.js"
import { overview } from "./overview.js"
import { queues, queue } from "./queues.js"
import { topics, topic } from "./topics.js"
import { views, view } from "./views.js"

// name, title, key after `g`, list, page of one, section, whether the cluster can have it
const PAGES = [
  ["", "Overview", "o", overview, null, ""],
  ["topics", "Topics", "t", topics, topic, "Log"],
  ["groups", "Consumer groups", "c", groups, group, ""],
  ["queues", "Queues", "q", queues, queue, "", about => about.share_groups],
  ["transactions", "Transactions", "x", transactions, null, ""],
  ["brokers", "Brokers", "b", brokers, null, ""],
  ["jobs", "Jobs", "j", jobs, job, "Processing"],
  ["views", "Views", "v", views, view, ""],
  ["aggregates", "Aggregates", "a", aggregates, aggregate, ""],
  ["captures", "Captures", "p", captures, null, ""],
]
const find = selector => document.querySelector(selector)
let about = { share_groups: true }, ends = [], shown = null

function route() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split("?")
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(text) }
}

function problem(error) {
  const place = find("#problem")
  if (!error) { place?.remove(); return }
  const text = error.status === 403 ? `${error.message}\nYour user lacks a right: an administrator can add it with \`headrace acl add\`.` : error.message
  if (place) { place.firstChild.textContent = text; return }
  find("#main").prepend(el("div", { class: "problem", id: "problem", role: "alert" }, text))
}

async function show() {
  const { parts, query } = route(), [name = "", item] = parts
  const page = PAGES.find(([known]) => known === name)
  const here = JSON.stringify([parts, [...query]])
  if (here === shown) return
  shown = here
  ends.forEach(end => end())
  ends = []
  const main = el("main", { id: "main", tabIndex: -1 })
  find("#main").replaceWith(main)
  find("#side").classList.remove("open")
  find("#menu").setAttribute("aria-expanded", "false")
  for (const entry of document.querySelectorAll("#nav a")) entry.dataset.page === name ? entry.setAttribute("aria-current", "page") : entry.removeAttribute("aria-current")
  const mine = () => find("#main") === main
  const live = (path, values, render) => {
    const end = follow(path, values, (document, isNew) => { if (mine()) { loaded(); render(document, isNew) } }, error => { if (mine()) { loaded(); problem(error) } })
    ends.push(end)
    return end
  }
  const atEnd = end => ends.push(end)
  const loading = el("p", { class: "loading" }, "Loading …")
  main.append(loading)
  const loaded = () => loading.remove()
  if (!page || (item !== undefined && !page[4])) { loaded(); main.append(el("div", { class: "empty" }, el("b", {}, "There is no such page"), el("a", { href: to() }, "Overview"))); return }
  document.title = `${item ?? page[1]} · Headrace console`
  try { await (item === undefined ? page[3] : page[4])({ main, item, tab: parts[2], query, live, atEnd, about, fail: problem }); if (!ends.length) loaded() } catch (fault) { loaded(); if (mine()) problem(fault) }
  if (loading.isConnected) main.append(loading)
  scrollTo(0, 0)
}

function navigation() {
  const links = []
  for (const [name, title, key, , , section, can] of PAGES) {
    if (can && !can(about)) continue
    if (section) links.push(el("h2", {}, section))
    links.push(el("a", { href: to(...name ? [name] : []), "data-page": name, title: `g ${key}` }, title))
  }
  find("#nav").replaceChildren(...links)
}

// ---- Keys

let awaiting = 0
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return
  if (event.target.closest("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return }
  if (awaiting && performance.now() - awaiting < 1500) {
    awaiting = 0
    const page = PAGES.find(([, , key, , , , can]) => key === event.key && (!can || can(about)))
    if (page) { event.preventDefault(); location.hash = to(...page[0] ? [page[0]] : []).slice(1) }
    return
  }
  if (event.key === "g") awaiting = performance.now()
  else if (event.key === "?") keys()
  else if (event.key === "/") { const field = find("#main input[type=search], #main input[name=filter]"); if (field) { event.preventDefault(); field.focus(); field.select() } }
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1)
  else if (event.key === "n") find("#main [data-key=n]")?.click()
  else if (event.key === "u") { const { parts } = route(); if (parts.length) location.hash = to(...parts.slice(0, -1)).slice(1) }
}

function move(step) {
  const links = [...document.querySelectorAll("#main tbody tr:not(.detail) > td:first-child :is(a, button)")].filter(each => each.offsetParent)
  const at = links.indexOf(document.activeElement)
  links[Math.min(Math.max(at + step, 0), links.length - 1)]?.focus()
}

function keys() {
  const pages = PAGES.filter(([, , , , , , can]) => !can || can(about)).flatMap(([, title, key]) => [el("dt", {}, el("kbd", {}, "g"), " ", el("kbd", {}, key)), el("dd", {}, title)])
  const others = [["/", "Filter"], ["j", "Next row"], ["k", "Previous row"], ["Enter", "Open the row"], ["u", "Up: back to the list"], ["n", "New: produce, create"], ["Esc", "Close a dialog, leave a field"]]
    .flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])
  ask({ title: "Keys", about: [el("dl", { class: "keys" }, others, pages)], button: "Close", send: () => "" })
}

// ---- The theme

function setTheme(theme) {
  theme ? document.documentElement.dataset.theme = theme : delete document.documentElement.dataset.theme
}
function switchTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark"
  setTheme(dark ? "light" : "dark")
  try { localStorage.setItem("headrace-theme", dark ? "light" : "dark") } catch { /* a browser without storage */ }
}
try { setTheme(localStorage.getItem("headrace-theme")) } catch { /* a browser without storage */ }

find("#theme").addEventListener("click", switchTheme)
find("#help").addEventListener("click", keys)
find("#menu").addEventListener("click", () => find("#menu").setAttribute("aria-expanded", String(find("#side").classList.toggle("open"))))
find("[data-skip]").addEventListener("click", event => { event.preventDefault(); find("#main").focus() })
document.addEventListener("keydown", onKey)
addEventListener("hashchange", show)
addEventListener("unhandledrejection", event => toast(event.reason?.message ?? String(event.reason), true))

navigation()
try {
  about = await read("/api/about")
  find("#cluster").textContent = about.cluster
  find("#user").hidden = !about.user && !about.read_only
  find("#user").textContent = [about.user && `as ${about.user}`, about.read_only && "read-only"].filter(Boolean).join(", ")
  navigation()
} catch (fault) { problem(fault) }
show()
