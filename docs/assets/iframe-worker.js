// A browser starts no worker for a page that was opened from the disk, and the search runs in one. There, run the
// worker's script in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      this.ready = new Promise((resolve, reject) => {
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        // The script asks for other languages by this function; English is part of it.
        inside.importScripts = () => {}
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        inside.document.body.appendChild(script)
      })
      this.inside = inside
      this.addEventListener("message", (event) => this.onmessage?.(event))
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
