// Graphs in layers, from left to right, as SVG: the layout, and the drawing.

const NS = "http://www.w3.org/2000/svg"
const WIDE = 168, HIGH = 44, GAP_X = 58, GAP_Y = 16, MARGIN = 18

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NS, name)
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(key, value)
  element.append(...children.filter(child => child !== null && child !== undefined))
  return element
}

// nodes: [{ id }], edges: [{ from, to }]. Returns the place of each node, the points of each edge, and the size.
// Layers are longest paths; an edge over several layers bends around the nodes between; the order within a layer
// follows the neighbors (barycenters).
export function layout(nodes, edges) {
  const ids = nodes.map(node => node.id), known = new Set(ids)
  const links = edges.filter(({ from, to }) => known.has(from) && known.has(to) && from !== to)
  const back = backEdges(ids, links)
  const forward = links.map(edge => back.has(edge) ? { ...edge, from: edge.to, to: edge.from } : edge)
  const layer = new Map(ids.map(id => [id, 0]))
  for (let round = 0, changed = true; changed && round <= ids.length; round++) {
    changed = false
    for (const { from, to } of forward) if (layer.get(to) <= layer.get(from)) { layer.set(to, layer.get(from) + 1); changed = true }
  }
  // A node without inputs stands directly before the first node that it feeds.
  const fed = new Set(forward.map(edge => edge.to))
  for (const id of ids) if (!fed.has(id)) {
    const next = forward.filter(edge => edge.from === id).map(edge => layer.get(edge.to))
    if (next.length) layer.set(id, Math.min(...next) - 1)
  }
  const layers = [], bends = new Map()
  const put = (id, at) => (layers[at] ??= []).push(id)
  for (const id of ids) put(id, layer.get(id))
  const steps = []
  links.forEach((edge, number) => {
    const { from, to } = forward[number], chain = [from]
    for (let at = layer.get(from) + 1; at < layer.get(to); at++) { const bend = `${number}/${at}`; put(bend, at); layer.set(bend, at); chain.push(bend) }
    chain.push(to)
    for (let at = 1; at < chain.length; at++) steps.push([chain[at - 1], chain[at]])
    bends.set(edge, back.has(edge) ? chain.reverse() : chain)
  })
  for (let at = 0; at < layers.length; at++) layers[at] ??= []
  order(layers, steps)
  return { ...place(layers, steps, known), bends, back }
}

function backEdges(ids, links) {
  const out = new Map(ids.map(id => [id, []])), state = new Map(), back = new Set()
  for (const edge of links) out.get(edge.from).push(edge)
  const visit = id => {
    state.set(id, 1)
    for (const edge of out.get(id)) {
      if (state.get(edge.to) === 1) back.add(edge)
      else if (!state.has(edge.to)) visit(edge.to)
    }
    state.set(id, 2)
  }
  for (const id of ids) if (!state.has(id)) visit(id)
  return back
}

function order(layers, steps) {
  const before = new Map(), after = new Map()
  for (const [from, to] of steps) {
    after.set(from, [...after.get(from) ?? [], to])
    before.set(to, [...before.get(to) ?? [], from])
  }
  const sort = (at, neighbors, side) => {
    const rank = new Map(layers[side].map((id, index) => [id, index / Math.max(1, layers[side].length)]))
    const own = new Map(layers[at].map((id, index) => {
      const near = (neighbors.get(id) ?? []).filter(other => rank.has(other)).map(other => rank.get(other))
      return [id, near.length ? near.reduce((a, b) => a + b) / near.length : index / Math.max(1, layers[at].length)]
    }))
    layers[at].sort((a, b) => own.get(a) - own.get(b))
  }
  for (let round = 0; round < 6; round++) {
    for (let at = 1; at < layers.length; at++) sort(at, before, at - 1)
    for (let at = layers.length - 2; at >= 0; at--) sort(at, after, at + 1)
  }
}

function place(layers, steps, known) {
  const high = id => known.has(id) ? HIGH : 14
  const y = new Map(), near = new Map()
  for (const [from, to] of steps) { near.set(from, [...near.get(from) ?? [], to]); near.set(to, [...near.get(to) ?? [], from]) }
  for (const ids of layers) { let top = 0; for (const id of ids) { y.set(id, top + high(id) / 2); top += high(id) + GAP_Y } }
  for (let round = 0; round < 12; round++) {
    for (const ids of round % 2 ? layers : [...layers].reverse()) {
      const wanted = ids.map(id => { const ys = (near.get(id) ?? []).map(other => y.get(other)); return ys.length ? ys.reduce((a, b) => a + b) / ys.length : y.get(id) })
      spread(ids, wanted, high).forEach((value, index) => y.set(ids[index], value))
    }
  }
  const top = Math.min(...[...y].map(([id, value]) => value - high(id) / 2), Infinity)
  const places = new Map()
  layers.forEach((ids, at) => ids.forEach(id => places.set(id, { x: MARGIN + at * (WIDE + GAP_X), y: y.get(id) - top + MARGIN })))
  const bottom = Math.max(...[...places].map(([id, at]) => at.y + high(id) / 2), 0)
  return { places, width: layers.length * (WIDE + GAP_X) - GAP_X + 2 * MARGIN, height: bottom + MARGIN }
}

// Positions in the given order, near the wanted ones, that do not overlap: overlapping ones share their mean.
function spread(ids, wanted, high) {
  const blocks = []
  ids.forEach((id, index) => {
    let block = { first: index, size: high(id) + GAP_Y, sum: wanted[index] - (high(id) + GAP_Y) / 2, count: 1 }
    while (blocks.length) {
      const last = blocks.at(-1)
      if (last.sum / last.count + last.size <= block.sum / block.count) break
      blocks.pop()
      block = { first: last.first, size: last.size + block.size, sum: last.sum + block.sum - block.count * last.size, count: last.count + block.count }
    }
    blocks.push(block)
  })
  const result = []
  for (const block of blocks) {
    let top = block.sum / block.count
    for (let index = block.first; index < block.first + block.count; index++) { const size = high(ids[index]) + GAP_Y; result.push(top + size / 2); top += size }
  }
  return result
}

// nodes: [{ id, title, sub, color, href, tone, about }], edges: [{ from, to, label, flows }]. The picture is made
// again only when nodes or edges came or went; otherwise its texts are changed.
export class Graph {
  #shape = ""; #edges = new Map(); #nodes = new Map()
  constructor(label) { this.node = document.createElement("div"); this.node.className = "graph"; this.label = label }
  update(nodes, edges) {
    const shape = JSON.stringify([nodes.map(node => [node.id, node.title]), edges.map(edge => [edge.from, edge.to])])
    if (shape !== this.#shape) { this.#shape = shape; this.#draw(nodes, edges) }
    for (const node of nodes) this.#fill(node)
    for (const edge of edges) {
      const held = this.#edges.get(`${edge.from}→${edge.to}`)
      if (!held) continue
      held.path.classList.toggle("flows", Boolean(edge.flows))
      if (held.label.textContent !== (edge.label ?? "")) held.label.textContent = edge.label ?? ""
    }
  }
  #draw(nodes, edges) {
    const { places, bends, width, height } = layout(nodes, edges)
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, style: `width:100%;max-width:${width}px;min-width:${Math.round(width * 0.84)}px`, role: "group", "aria-label": this.label })
    this.#edges.clear(); this.#nodes.clear()
    const labels = []
    for (const edge of edges) {
      const chain = bends.get(edge)
      if (!chain) continue
      const path = svg("path", { class: "edge", d: curve(chain, places) })
      picture.append(path)
      const last = places.get(chain.at(-1)), label = svg("text", { class: "rate", x: last.x - 6, y: last.y - 5, "text-anchor": "end" })
      labels.push(label)
      this.#edges.set(`${edge.from}→${edge.to}`, { path, label })
    }
    for (const node of nodes) {
      const { x, y } = places.get(node.id), group = svg(node.href ? "a" : "g", { class: "node", href: node.href, tabindex: node.href ? null : "-1" })
      const title = svg("text", { x: x + 14, y: y - 3 }, shortened(node.title, 19)), sub = svg("text", { class: "sub", x: x + 14, y: y + 13 }), about = svg("title")
      group.append(about, svg("rect", { class: "box", x, y: y - HIGH / 2, width: WIDE, height: HIGH, rx: 7 }),
        svg("rect", { class: "mark", x: x + 1, y: y - HIGH / 2 + 7, width: 4, height: HIGH - 14, rx: 2, style: `fill: var(--${node.color ?? "c6"})` }), title, sub)
      picture.append(group)
      this.#nodes.set(node.id, { group, sub, about })
    }
    picture.append(...labels)
    this.node.replaceChildren(picture)
  }
  #fill(node) {
    const { group, sub, about } = this.#nodes.get(node.id), text = shortened(node.sub ?? "", 24)
    if (sub.textContent !== text) sub.textContent = text
    const full = [node.title, node.sub, node.about].filter(Boolean).join("\n")
    if (about.textContent !== full) about.textContent = full
    group.setAttribute("class", `node ${node.tone ?? ""}`)
  }
}

function curve(chain, places) {
  const { x, y } = places.get(chain[0])
  let here = [x + WIDE, y], path = `M ${here[0]} ${here[1]}`
  chain.slice(1).forEach((id, index) => {
    const next = places.get(id), bend = (next.x - here[0]) * 0.5
    path += ` C ${here[0] + bend} ${here[1]} ${next.x - bend} ${next.y} ${next.x} ${next.y}`
    here = [next.x, next.y]
    if (index < chain.length - 2) { path += ` L ${next.x + WIDE} ${next.y}`; here = [next.x + WIDE, next.y] }
  })
  return path
}

const shortened = (text, most) => text.length <= most ? text : `${text.slice(0, most - 1)}…`
