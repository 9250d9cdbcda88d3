// Jobs: figures, the plan as a graph, phases of batches, restart and reset; captures.

import { api, read, send } from "./api.js"
import { ago, ask, badge, bytes, code, count, el, empty, link, number, rate, Rates, span, Table, tiles, toneOf } from "./dom.js"
import { Graph } from "./graph.js"

const behind = watermark => watermark ? Date.now() - new Date(watermark) : null
const START = empty("No job has run yet", "Write one and run it: ", code("headrace init shop && headrace run shop/pipeline.py"))

export function jobs({ main, live }) {
  const table = new Table([
    { title: "Job", class: "wrap", cell: row => [link(row.job, "jobs", row.name), el("div", { class: "soft" }, row.app)], sort: row => row.name },
    { title: "State", cell: row => [badge(row.state), row.reason && el("div", { class: "soft", title: row.reason }, row.reason.length > 60 ? `${row.reason.slice(0, 59)}…` : row.reason)], sort: row => row.state },
    { title: "Rate", class: "number", cell: row => rate(row.state === "running" ? row.rows_per_second : 0), sort: row => row.rows_per_second ?? 0 },
    { title: "Lag", class: "number", cell: row => row.lag === null || row.lag === undefined ? "–" : number(row.lag), sort: row => row.lag ?? 0 },
    { title: "Watermark", class: "number", cell: row => row.watermark ? el("span", { title: row.watermark }, `${span(behind(row.watermark))} behind`) : "–" },
    { title: "Batch", class: "number", cell: row => span(row.batch_ms), sort: row => row.batch_ms ?? 0 },
    { title: "State rows", class: "number", cell: row => row.state_rows === null || row.state_rows === undefined ? "–" : number(row.state_rows), sort: row => row.state_rows ?? 0 },
    { title: "Late", class: "number", cell: row => number(row.late ?? 0), sort: row => row.late ?? 0 },
    { title: "Dead", class: "number", cell: row => row.dead ? badge(count(row.dead), "warn") : number(0), sort: row => row.dead ?? 0 },
  ], { label: "Jobs", key: row => row.name, empty: START })
  main.append(el("div", { class: "head" }, el("h1", {}, "Jobs")), table.node)
  live("/api/jobs", {}, document => table.update(document.jobs))
}

const PHASES = [  // Spark's names, in their order within a batch
  ["latestOffset", "Find offsets"], ["getBatch", "Plan reading"], ["queryPlanning", "Plan query"], ["walCommit", "Write offsets"], ["addBatch", "Compute and write"], ["commitOffsets", "Commit"], ["commitBatch", "Commit"],
]

export function job({ main, item, live, about }) {
  const figures = el("div", { class: "tiles" }), notice = el("div"), graph = new Graph(`Plan of ${item}`), phases = el("div"), facts = el("div", { class: "panel" })
  const name = item.slice(item.indexOf(".") + 1)
  const again = el("button", { onclick: () => restart(item) }, "Restart"), clear = el("button", { class: "danger", onclick: () => reset(item) }, "Reset …")
  const state = el("span")
  const operators = new Table([
    { title: "Operator", cell: row => row.operator }, { title: "Keeps", class: "wrap", cell: row => row.description }, { title: "Rows", class: "number", cell: row => number(row.rows) },
    { title: "Size", class: "number", cell: row => bytes(row.byte_size) }, { title: "Time", class: "number", cell: row => span(row.state_ms) },
  ], { label: "State of operators", key: row => row.operator, empty: empty("No state") })
  const kept = el("section", { hidden: true }, el("h2", {}, "State by operator"), operators.node)
  main.append(
    el("div", { class: "head" }, el("div", { class: "crumb" }, link("Jobs", "jobs")), el("h1", {}, name), state, el("div", { class: "actions" }, !about.read_only && [again, clear])),
    notice, figures, el("section", {}, el("h2", {}, "Plan"), graph.node),
    el("div", { class: "columns" }, el("section", {}, el("h2", {}, "Last batch"), el("div", { class: "panel" }, phases)), el("section", {}, el("h2", {}, "About"), facts)), kept)
  const rates = new Rates()
  let planShape = ""
  live(api("jobs", item), {}, document => {
    const runs = !["stopped", "lost"].includes(document.state)
    state.replaceChildren(badge(document.state))
    again.disabled = !runs
    again.title = runs ? "Stop after the current batch, and start again" : "No process runs this job: start it with `headrace run`"
    clear.disabled = !document.resettable
    clear.title = document.resettable ? "Start with empty state from a position" : "No process runs this job here: use `headrace job reset` on its machine"
    const tone = toneOf(document.state)
    const text = document.reason || (document.state === "lost" ? `Its process has said nothing since ${ago(document.updated_ms)}. It may have been killed: start it again with headrace run.` : "")
    if (notice.textContent !== text) notice.replaceChildren(...text ? [el("div", { class: tone === "bad" ? "problem" : "problem mild" }, text)] : [])
    tiles(figures, [
      ["Rate", runs ? rateText(document.rows_per_second) : "–"], ["Lag", count(document.lag)], ["Rows read", count(document.rows)], ["Batches", count(document.batches)],
      ["Watermark", document.watermark ? `${span(behind(document.watermark))} behind` : "–"], ["State", document.state_rows === null || document.state_rows === undefined ? "none" : `${count(document.state_rows)} rows`],
      ["State size", bytes(document.state_bytes)], ["Late rows", count(document.late ?? 0), document.late ? "warn" : ""], ["Dead letters", count(document.dead ?? 0), document.dead ? "warn" : ""], ["Restarts", count(document.restarts)],
    ])
    drawPlan(graph, document, rates)
    drawPhases(phases, document)
    if (planShape !== (planShape = JSON.stringify([document.plan?.updated_ms, document.request, document.host]))) about_(facts, document)
    kept.hidden = !document.operators.length
    operators.update(document.operators)
  })
}

const rateText = value => value === null || value === undefined ? "–" : value === 0 ? "0/s" : `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")}/s`

function drawPlan(graph, document, rates) {
  const nodes = [], edges = [], runs = document.state === "running" && document.rows_per_second > 0
  const topic = (name, color, sub) => { if (!nodes.some(node => node.id === `t:${name}`)) nodes.push({ id: `t:${name}`, title: name, sub, color, href: `#/topics/${encodeURIComponent(name)}` }); return `t:${name}` }
  if (!document.plan) {
    for (const name of document.inputs) edges.push({ from: topic(name, "c1", "topic"), to: "rows", flows: runs })
    nodes.push({ id: "rows", title: document.job, sub: "plan known once it runs", color: "c4" })
  } else {
    const read = new Set()
    for (const each of document.plan.operators) {
      const facts = Object.entries(each.parameters), source = each.parameters.topic
      nodes.push({ id: each.name, title: each.name, sub: each.keeps_state ? facts.find(([key]) => key === "state")?.[1] ?? "keeps state" : facts.filter(([key]) => key !== "topic").map(([key, value]) => `${key} ${value}`)[0] ?? each.kind, color: each.keeps_state ? "c4" : "c3", about: [...facts.map(([key, value]) => `${key}: ${value}`), each.place].join("\n") })
      if (source) { read.add(source); edges.push({ from: topic(source, "c1", "topic"), to: each.name, flows: runs, label: document.inputs.length === 1 && runs ? rateText(document.rows_per_second) : "" }) }
      each.inputs.forEach((flow, at) => join(flow, each.name, `${each.name}/${at}`))
    }
    for (const name of document.inputs) if (!read.has(name)) {
      const user = document.plan.operators.find(each => Object.values(each.parameters).some(value => value.split(/[\s,:]+/).includes(name)))
      edges.push({ from: topic(name, "c1", "topic"), to: user?.name ?? "rows", flows: runs })
    }
    nodes.push({ id: "rows", title: document.job, sub: document.plan.columns.replace(/^struct</, "").replace(/>$/, "").replaceAll(",", ", "), color: "c2", about: document.plan.columns })
    join(document.plan.rows, "rows", "rows/0")
  }
  for (const output of document.outputs) {
    const id = output.kind === "sink" ? `s:${output.name}` : topic(output.name, output.kind === "view" ? "c5" : "c1", output.kind)
    if (output.kind === "sink") nodes.push({ id, title: output.name, sub: "sink", color: "c7" })
    edges.push({ from: "rows", to: id, flows: runs, label: runs && document.rows_out?.[output.name] ? rateText(rates.note(output.name, document.rows_out[output.name]) ?? 0) : "" })
  }
  graph.update(nodes, edges)
  function join(flow, target, id) {
    let at = target
    if (flow.steps.some(step => step !== "Project")) {  // choosing columns is no step to show
      nodes.push({ id, title: "Spark", sub: flow.steps.join(", "), color: flow.stateful.length ? "c4" : "c6", about: flow.stateful.length ? `Spark keeps state for ${flow.stateful.join(", ")}` : "" })
      edges.push({ from: id, to: target, flows: runs })
      at = id
    }
    for (const name of flow.operators) edges.push({ from: name, to: at, flows: runs })
  }
}

function drawPhases(place, document) {
  const all = document.phases_ms ?? {}, total = all.triggerExecution ?? document.batch_ms ?? 0
  if (!total) { if (!place.firstChild) place.append(el("p", { class: "soft" }, "No batch yet. The first one runs when there is something to read.")); return }
  const parts = PHASES.filter(([phase]) => all[phase]).map(([phase, title], at) => [title, all[phase], `c${at % 7 + 1}`, phase])
  const rest = total - parts.reduce((sum, [, ms]) => sum + ms, 0)
  if (rest > 0) parts.push(["Other", rest, "c6", "the rest of triggerExecution"])
  place.replaceChildren(
    el("div", { class: "phases", role: "img", "aria-label": parts.map(([title, ms]) => `${title} ${ms} ms`).join(", ") }, parts.map(([title, ms, color, phase]) => el("i", { style: `width:${100 * ms / total}%;background:var(--${color})`, title: `${title} (${phase}): ${ms} ms` }))),
    el("div", { class: "legend" }, parts.map(([title, ms, color]) => el("span", {}, el("i", { style: `background:var(--${color})` }), `${title} `, el("b", {}, span(ms)))), el("span", { class: "soft" }, `total ${span(total)}`)))
}

function about_(place, document) {
  const facts = [["Application", document.app], ["Purpose", document.plan?.purpose], ["Defined in", document.plan?.place], ["Runs on", document.host && `${document.host}, process ${document.pid}`],
    ["Reads", document.inputs.flatMap((name, at) => [at ? ", " : null, link(name, "topics", name)])], ["Writes", document.outputs.flatMap((output, at) => [at ? ", " : null, output.kind === "topic" ? link(output.name, "topics", output.name) : output.kind === "view" ? link(output.name, "views", output.name) : output.name])],
    ["Dead letters", document.plan && link(document.plan.dead_topic, "topics", document.plan.dead_topic)], ["Late rows", document.plan?.late_topic && link(document.plan.late_topic, "topics", document.plan.late_topic)],
    ["Checkpoint", document.checkpoint && el("span", { class: "mono" }, document.checkpoint)], ["Last request", document.request && `${document.request.action}, ${ago(document.request.at_ms)}${document.request.user ? `, by ${document.request.user}` : ""}`]]
  place.replaceChildren(el("dl", { style: "display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 16px;margin:0" }, facts.filter(([, value]) => value && value.length !== 0).map(([title, value]) => [el("dt", {}, title), el("dd", {}, value)])))
}

// A request is done when the status of the job names it.
async function done(item, id) {
  for (let round = 0; round < 60; round++) {
    await new Promise(resolve => setTimeout(resolve, 1000))
    if ((await read(api("jobs", item))).request?.id === id) return
  }
  throw new Error("The process of the job has not done it within a minute. A long batch is finished first: look at the state of the job.")
}

function restart(item) {
  ask({ title: "Restart the job", button: "Restart", about: ["The job stops after its current batch, and starts again with the state that it has. Nothing is lost or done twice."],
    send: async () => { const { request } = await send(api("jobs", item, "restart")); await done(item, request); return `${item} was restarted` } })
}

function reset(item) {
  ask({ title: "Reset the job", button: "Reset", danger: true, about: [
    el("p", {}, "The job starts with ", el("b", {}, "empty state"), " from the position below. Results that it has written stay: from an earlier position it writes some of them again. The old checkpoint is kept."),
  ], fields: [
    { name: "to", label: "Position in all topics: start, end, an offset, a time (2026-01-31T12:00), or a time ago (-5m)", value: "start" },
    { name: "confirm", label: `Type ${item} to confirm` },
  ], check: values => values.confirm === item && values.to.trim() !== "",
  send: async values => {
    const { request, done: isDone } = await send(api("jobs", item, "reset"), { to: values.to.trim(), confirm: values.confirm })
    if (!isDone) await done(item, request)
    return isDone ? `${item} is reset: it begins there when it is started next` : `${item} was reset, and runs again`
  } })
}

export function captures({ main, live }) {
  const table = new Table([
    { title: "Capture", cell: row => [el("b", {}, row.capture), el("div", { class: "soft wrap" }, row.database)] },
    { title: "State", cell: row => row.status ? [badge(row.status.is_connected ? "connected" : row.status.state), row.status.is_taking_snapshot && badge("snapshot", "plain")] : el("span", { class: "soft" }, "no process says") },
    { title: "Position", class: "mono", cell: row => row.position },
    { title: "Newest change", class: "number", cell: row => row.newest_ms ? ago(row.newest_ms) : "–" },
    { title: "Behind", class: "number", cell: row => row.status ? span(row.status.behind_ms) : "–" },
    { title: "WAL retained", class: "number", cell: row => row.status ? bytes(row.status.retained_wal_bytes) : "–" },
    { title: "Tables", class: "wrap", cell: row => Object.entries(row.tables).flatMap(([name, topic], at) => [at ? ", " : null, el("span", { title: name }, link(topic, "topics", topic))]) },
  ], { label: "Captures", key: row => row.capture, empty: empty("No database is captured yet", "Capture the tables of a PostgreSQL: ", code("headrace capture postgres://app@127.0.0.1/shop --tables public.orders")) })
  main.append(el("div", { class: "head" }, el("h1", {}, "Captures")), el("p", { class: "note" }, "Change data capture: the position is the end of the last committed transaction in the log of the database."), table.node)
  live("/api/captures", {}, document => table.update(document.captures))
}
