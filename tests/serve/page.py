#!/usr/bin/env python3
"""The chat page in headless Chromium, against a running server with a chat template.

In: host and port. Out: a line for each check, exit 1 where one fails. Needs the package `selenium`, Chromium and its
driver; without them it says so and passes.
"""
import shutil
import sys
import time
import urllib.request


def main(host, port):
    try:
        from selenium import webdriver
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import Select
    except ImportError:
        print("skipped: the package selenium is not installed")
        return 0
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,800"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = shutil.which("chromedriver")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver) if driver else None)
    except WebDriverException as error:
        print(f"skipped: no headless Chromium ({error.msg.splitlines()[0]})")
        return 0
    failed = 0

    def check(what, holds):
        nonlocal failed
        failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {what}")

    def until(holds, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if holds():
                return True
            time.sleep(0.05)
        return False

    def one(name):
        return browser.find_element(By.ID, name)

    def articles(role):
        return browser.find_elements(By.CSS_SELECTOR, f"article.{role}")

    def put(name, value):
        one(name).clear()
        one(name).send_keys(value)

    def is_idle():
        return one("send").text == "Send"

    def ask(text):
        one("text").send_keys(text, Keys.ENTER)

    def n_running():
        text = urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("fusebox_requests_running "))

    try:
        browser.get(f"http://{host}:{port}/")
        check("the page has its title", browser.title == "Fusebox")
        check("the models are listed", until(lambda: len(Select(one("model")).options) > 0, 10))
        put("max_tokens", "16")
        one("text").send_keys("Say", Keys.SHIFT + Keys.ENTER, Keys.NULL, "hello.")
        check("shift and enter begin a new line", one("text").get_property("value") == "Say\nhello.")
        ask("")
        check("a question is shown as it was written", until(lambda: [a.text for a in articles("user")] == ["Say\nhello."], 5))
        check("it is answered", until(lambda: articles("assistant") and articles("assistant")[0].text and is_idle()))
        check("both turns are remembered", browser.execute_script("return messages.length") == 2)
        check("metrics are live", until(lambda: one("running").text == "0" and one("pool").text.endswith("%") and one("generated").text != "–", 10))
        ask("<img src=x onerror=alert(1)> <b>bold</b>")
        until(lambda: len(articles("assistant")) == 2 and is_idle())
        check("markup in a text stays text", not browser.find_elements(By.CSS_SELECTOR, "#log img, #log b") and "<b>bold</b>" in articles("user")[1].text)
        shown = browser.execute_script("const box = show('assistant'); ['a\\n``', '`py\\nx <', ' y\\n```\\nb'].forEach((text) => add(box, 'text', text));"
                                       "const found = [...box.querySelectorAll('pre, span')].map((e) => e.tagName + e.textContent); box.remove(); return found")
        check("fenced code stands apart", shown == ["SPANa\n", "PREx < y", "SPANb"])
        put("max_tokens", "100000")
        ask("Count from one to ten thousand.")
        # A small model may be through before it can be stopped.
        check("an answer begins", until(lambda: len(articles("assistant")) == 3 and articles("assistant")[2].text))
        one("send").click()
        check("it can be stopped, and the server stops, too", until(is_idle, 5) and until(lambda: n_running() == 0, 5))
        ask("Once more.")
        until(lambda: one("send").text == "Stop", 5)
        one("clear").click()
        check("a new chat is empty, and what was under way does not come back", until(is_idle, 5) and not articles("user") and browser.execute_script("return messages.length") == 0)
        put("temperature", "9")
        ask("Hello.")
        check("a refusal is shown", until(lambda: "temperature" in browser.find_element(By.ID, "log").text, 10))
        put("temperature", "0.7")
        put("max_tokens", "8")
        ask("Hello again.")
        check("and the chat goes on after it", until(lambda: len(articles("assistant")) == 2 and is_idle() and articles("assistant")[1].text, 30)
              and not browser.find_elements(By.CSS_SELECTOR, "article:nth-of-type(n+3) .fault"))
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => new URL(e.name).host)")
        check("nothing is loaded from elsewhere", set(loaded) <= {f"{host}:{port}"})
        errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE" and "status of 400" not in entry["message"]]
        check(f"no errors in the console {errors or ''}".rstrip(), not errors)
        browser.set_window_size(400, 800)
        width = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        check("it fits a narrow window", width <= 0)
    finally:
        browser.quit()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
