// The page of the demo. Charts follow change feeds of views; everything else is told by /live.
"use strict"

const SVG = "http://www.w3.org/2000/svg"
const find = selector => document.querySelector(selector)
const money = cents => (cents / 100).toLocaleString("en", { maximumFractionDigits: 0 })
const minute = time => time.slice(11, 16)

function draw(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name)
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
  element.textContent = text
  return element
}

function canvas(place, width, height, children) {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}` })
  svg.append(...children)
  place.replaceChildren(svg)
}

// ---- Views: rows by key, as their change feeds tell them.

const views = { revenue: new Map(), hot_products: new Map(), spend: new Map(), catalogue: new Map() }
let names = []  // of customers, told by /live

function follow(view, show) {
  const rows = views[view]
  const feed = new EventSource(`/changes/${view}`)  // after a cut it goes on behind the last change by itself
  for (const kind of ["row", "upsert", "delete"])
    feed.addEventListener(kind, event => {
      const { key, row } = JSON.parse(event.data)
      const id = JSON.stringify(key)
      row === null ? rows.delete(id) : rows.set(id, row)
      later(show)
    })
  // A view that is not there yet, or a token that is too old: the browser has given up, so begin anew.
  feed.addEventListener("error", () => {
    if (feed.readyState === EventSource.CLOSED) { rows.clear(); setTimeout(follow, 1000, view, show) }
  })
}

const pending = new Set()
function later(show) {  // many changes, one picture
  if (!pending.size) requestAnimationFrame(() => { for (const each of pending) each(); pending.clear() })
  pending.add(show)
}

const product = number => views.catalogue.get(JSON.stringify({ id: number }))
const productName = number => product(number)?.name ?? `product ${number}`

// ---- Charts

function showRevenue() {
  const minutes = new Map()
  for (const row of views.revenue.values()) {
    const stack = minutes.get(row.window_start) ?? [0, 0, 0, 0]
    stack[((row.product - 1) >> 1) % 4] += row.revenue
    minutes.set(row.window_start, stack)
  }
  const shown = [...minutes].sort(([a], [b]) => a < b ? -1 : 1).slice(-12)
  const most = Math.max(1, ...shown.map(([, stack]) => stack.reduce((a, b) => a + b)))
  const width = 300, floor = 128, step = width / 12
  const parts = [draw("line", { x1: 0, x2: width, y1: floor, y2: floor, class: "grid" })]
  shown.forEach(([start, stack], index) => {
    let top = floor
    stack.forEach((cents, colour) => {
      const height = cents / most * (floor - 16)
      top -= height
      parts.push(draw("rect", { x: index * step + 2, y: top, width: step - 4, height, rx: 1.5, fill: `var(--c${colour + 1})` }))
    })
    if (index === shown.length - 1) {
      const sum = money(stack.reduce((a, b) => a + b))
      parts.push(draw("text", { x: index * step + step - 2, y: top - 4, class: "value", "text-anchor": "end" }, sum))
    }
    if (index % 2 === 1)
      parts.push(draw("text", { x: index * step + step / 2, y: floor + 13, class: "axis", "text-anchor": "middle" }, minute(start)))
  })
  canvas(find("#revenue .chart"), width, 146, parts)
}

function bars(place, rows, colour) {  // rows: [label, value, text]
  const most = Math.max(1, ...rows.map(([, value]) => value)), height = 146 / 8
  canvas(place, 300, 146, rows.slice(0, 8).flatMap(([label, value, text], index) => {
    const y = index * height
    return [
      draw("text", { x: 0, y: y + 12, class: "axis" }, label),
      draw("rect", { x: 78, y: y + 2, width: value / most * 180, height: height - 6, rx: 2, fill: `var(--c${colour})` }),
      draw("text", { x: 82 + value / most * 180, y: y + 12, class: "value" }, text),
    ]
  }))
}

function showHot() {
  const rows = [...views.hot_products.values()]
  const newest = rows.reduce((last, row) => row.window_start > last ? row.window_start : last, "")
  const shown = rows.filter(row => row.window_start === newest).sort((a, b) => b.clicks - a.clicks)
  bars(find("#hot .chart"), shown.map(row => [productName(row.product), row.clicks, row.clicks]), 2)
  if (newest) find("#hot small").textContent = `hopping: 5 minutes from ${minute(newest)}`
}

function showSpend() {
  const rows = [...views.spend.values()].sort((a, b) => b.spent - a.spent)
  bars(find("#spend .chart"), rows.map(row => [names[row.customer - 1] ?? row.customer, row.spent, money(row.spent)]), 3)
}

function showOrders({ paid, unpaid, waiting }) {
  const sum = Math.max(1, paid + unpaid + waiting), parts = []
  let begin = -Math.PI / 2
  for (const [count, colour] of [[paid, "good"], [unpaid, "bad"], [waiting, "line"]]) {
    const end = begin + Math.min(count / sum, 0.9999) * 2 * Math.PI
    const point = angle => `${75 + 48 * Math.cos(angle)} ${56 + 48 * Math.sin(angle)}`
    const large = end - begin > Math.PI ? 1 : 0
    parts.push(draw("path", { d: `M ${point(begin)} A 48 48 0 ${large} 1 ${point(end)}`, fill: "none", stroke: `var(--${colour})`, "stroke-width": 13 }))
    begin = end
  }
  const share = paid + unpaid ? Math.round(100 * paid / (paid + unpaid)) : 0
  parts.push(draw("text", { x: 75, y: 62, class: "value", "text-anchor": "middle", style: "font-size:18px" }, `${share} %`))
  canvas(find("#orders .chart"), 150, 112, parts)
}

// ---- The pipeline: what is beside what, and which topic's rate stands on which edge.

const COLUMNS = [10, 262, 520, 800, 1090]
const NODES = {
  postgres: [0, 62, "PostgreSQL", "customers, products, orders"], pay: [0, 138, "payments", "most orders, not all"],
  phones: [0, 214, "phones", "whose clocks are wrong"],
  tables: [1, 30, "tables", "captured changes"], orders: [1, 94, "orders", "the outbox, captured"],
  payments: [1, 158, "payments", "topic"], clicks: [1, 222, "clicks", "clocks corrected"],
  catalogue: [2, 22, "catalogue", "table with table"], spend: [2, 66, "spend", "sliding, 10 minutes"],
  revenue: [2, 110, "revenue", "tumbling, 1 minute"], order_status: [2, 154, "order_status", "stream with stream"],
  visits: [2, 198, "visits", "stream with table"], hot_products: [2, 242, "hot_products", "hopping, 5 minutes"],
  index: [3, 22, "search index", "full text"], redis: [3, 66, "Redis", "cache"],
  database: [3, 110, "PostgreSQL", "revenue, order_status"], queue: [3, 154, "queue", "one mail for each order"],
  topics: [3, 198, "visits", "topic"], views: [3, 242, "views", "with change feeds"],
  stock: [4, 66, "stock", "event-sourced"], mailbox: [4, 154, "mailbox", "SMTP"], page: [4, 242, "this page", "server-sent events"],
}
const EDGES = [  // from, to, whose records, and where on the edge their rate stands
  ["postgres", "tables", "changes"], ["postgres", "orders", "orders"], ["pay", "payments", "payments"], ["phones", "clicks", "clicks"],
  ["tables", "catalogue", "changes"], ["tables", "visits", "shop.public.customers", 0.3], ["orders", "spend", "orders"], ["orders", "revenue", "orders"],
  ["orders", "order_status", "orders", 0.5], ["payments", "order_status", "payments"], ["clicks", "visits", "clicks"], ["clicks", "hot_products", "clicks"],
  ["catalogue", "index", "catalogue"], ["catalogue", "redis", "catalogue", 0.5], ["spend", "redis", "spend"], ["revenue", "database", "revenue"],
  ["order_status", "database", "order_status", 0.5], ["order_status", "queue", "order_status"], ["visits", "topics", "visits"],
  ["hot_products", "views", "hot_products"], ["orders", "stock", "shop.Stock.events"], ["queue", "mailbox", "mails"], ["views", "page", "hot_products"],
]
const edges = []

function drawPipeline() {
  const parts = [], wide = 150, high = 34
  EDGES.forEach(([from, to, topic, place = 0.72]) => {
    const [x1, y1] = [COLUMNS[NODES[from][0]] + wide, NODES[from][1] + high / 2]
    const [x2, y2] = [COLUMNS[NODES[to][0]], NODES[to][1] + high / 2]
    const far = to === "stock"
    const path = far  // over the top of what lies between
      ? draw("path", { class: "edge", d: `M ${x1} ${y1} C ${x1 + 40} ${y1} ${x1 + 30} 8 ${x1 + 120} 8 L ${x2 - 110} 8 C ${x2 - 40} 8 ${x2 - 60} ${y2} ${x2} ${y2}` })
      : draw("path", { class: "edge", d: `M ${x1} ${y1} C ${x1 + 50} ${y1} ${x2 - 50} ${y2} ${x2} ${y2}` })
    const at = path.getPointAtLength(path.getTotalLength() * (far ? 0.5 : place))
    const label = draw("text", { class: "rate", x: at.x, y: at.y + 3 })
    edges.push({ path, label, topic })
    parts.push(path)
  })
  parts.push(...edges.map(edge => edge.label))
  for (const [name, [column, y, title, note]] of Object.entries(NODES)) {
    const group = draw("g", { class: `node${column === 2 ? " job" : ""}`, "data-node": name })
    group.append(draw("rect", { x: COLUMNS[column], y, width: wide, height: high, rx: 7 }),
      draw("text", { x: COLUMNS[column] + 10, y: y + 15 }, title), draw("text", { x: COLUMNS[column] + 10, y: y + 27, class: "note" }, note))
    parts.push(group)
  }
  canvas(find("#pipeline"), 1250, 282, parts)
}

function showRates(rates, jobs) {
  for (const { path, label, topic } of edges) {
    const rate = rates[topic] ?? 0
    path.classList.toggle("flows", rate > 0)
    label.textContent = rate > 0 ? `${rate < 10 ? rate.toFixed(1) : Math.round(rate)}/s` : ""
  }
  for (const job of jobs) {
    const note = find(`[data-node="${job.job}"] .note`)
    if (note && job.batch_ms !== null) note.textContent = `${note.textContent.split(" · ")[0]} · ${(job.batch_ms / 1000).toFixed(1)} s`
  }
}

// ---- What is live

function cell(row, text) { const made = document.createElement("td"); made.textContent = text; row.append(made) }

function showCheck(results) {
  const state = each => each.wrong ? "wrong" : each.found === each.expected ? "holds" : "flows"
  find("#check tbody").replaceChildren(...results.map(each => {
    const row = document.createElement("tr")
    row.dataset.state = state(each)
    for (const text of [each.claim, each.expected.toLocaleString("en"), each.found.toLocaleString("en"), each.wrong]) cell(row, text)
    return row
  }))
  const states = results.map(state), verdict = find("#verdict")
  verdict.dataset.state = !results.length ? "waiting" : states.includes("wrong") ? "wrong" : states.includes("flows") ? "flows" : "holds"
  verdict.textContent = { waiting: "waiting for results", wrong: "something is wrong", flows: "nothing lost or doubled", holds: "all is there, once" }[verdict.dataset.state]
}

function showMails(mails) {
  find("#mailbox ol").replaceChildren(...mails.map(([to, subject]) => {
    const item = document.createElement("li"), name = document.createElement("b"), text = document.createElement("span")
    name.textContent = to; text.textContent = subject
    item.append(name, text)
    return item
  }))
}

function show(live) {
  names = live.customers
  find("#clock").textContent = live.clock
  find("#news").textContent = live.news
  find("#console").hidden = !live.console
  if (live.console) find("#console").href = live.console
  for (const name of ["paid", "unpaid", "waiting", "late", "mails", "dead"]) find(`#${name}`).textContent = live[name].toLocaleString("en")
  showRates(live.rates, live.jobs)
  showOrders(live)
  showCheck(live.results)
  showMails(live.newest_mails)
}

drawPipeline()
follow("catalogue", showHot)
follow("revenue", showRevenue)
follow("hot_products", showHot)
follow("spend", showSpend)
new EventSource("/live").onmessage = event => show(JSON.parse(event.data))
